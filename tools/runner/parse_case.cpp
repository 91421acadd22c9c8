#include "runner/parse_case.h"

#include <algorithm>
#include <regex>

#include "runner/object_reader.h"
#include "runner/parse_strides.h"

namespace kvrope::regress {
namespace {

// Bounds that keep products of sizes inside 64 bits.
constexpr int64_t kMostRows = 2147483647;
constexpr int64_t kMostHeads = 4096;
constexpr int64_t kMostDims = 4096;
constexpr int64_t kMostBlockSize = 1 << 20;
constexpr int64_t kMostBlocks = 1 << 28;
constexpr int64_t kMostAxes = 8;

const std::vector<std::pair<std::string, NumberFormat>> kDTypes = {
    {"fp16", NumberFormat::fp16}, {"bf16", NumberFormat::bf16}, {"fp32", NumberFormat::fp32}};
const std::vector<std::pair<std::string, IndexDType>> kIndexDTypes = {{"int32", IndexDType::int32},
                                                                      {"int64", IndexDType::int64}};

bool names_any(const ObjectReader& reader, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    if (reader.find(key)) return true;
  }
  return false;
}

void apply_sizes(CaseSpec& spec, const ObjectReader& reader) {
  reader.integer("num_tokens", 0, kMostRows, spec.num_tokens);
  reader.integer("num_kv_rows", 0, kMostRows, spec.num_kv_rows);
  reader.integer("num_slots", 0, kMostRows, spec.num_slots);
  reader.integer("q_heads", 1, kMostHeads, spec.q_heads);
  reader.integer("kv_heads", 1, kMostHeads, spec.kv_heads);
  reader.integer("head_dim", 1, kMostDims, spec.head_dim);
  reader.integer("v_head_dim", 1, kMostDims, spec.v_head_dim);
  reader.integer("rotary_dim", 1, kMostDims, spec.rotary_dim);
  reader.integer("rotary_dim_offset", 0, kMostDims, spec.rotary_dim_offset);
  reader.integer("x", 1, kMostDims, spec.x);
  reader.integer("block_size", 1, kMostBlockSize, spec.block_size);
  reader.integer("num_blocks", 1, kMostBlocks, spec.num_blocks);
  reader.integer("page_padding", 0, kMostRows, spec.page_padding);
  reader.integer("seed", 0, kAnyInt64, spec.seed);
}

void apply_choices(CaseSpec& spec, const ObjectReader& reader) {
  reader.choice("dtype", kDTypes, spec.dtype);
  reader.choice("table_dtype", kDTypes, spec.table_dtype);
  reader.choice(
      "kv_cache_dtype",
      std::vector<std::pair<std::string, CacheDType>>{{"auto", CacheDType::same},
                                                      {"fp8_e4m3", CacheDType::fp8_e4m3},
                                                      {"fp8_e5m2", CacheDType::fp8_e5m2},
                                                      {"fp8_e4m3_uint8", CacheDType::fp8_e4m3_in_uint8},
                                                      {"fp8_e5m2_uint8", CacheDType::fp8_e5m2_in_uint8}},
      spec.kv_cache_dtype);
  reader.choice(
      "q_out_dtype",
      std::vector<std::pair<std::string, std::optional<NumberFormat>>>{
          {"auto", std::nullopt}, {"fp8_e4m3", NumberFormat::fp8_e4m3}, {"fp8_e5m2", NumberFormat::fp8_e5m2}},
      spec.q_out_dtype);
  reader.choice("layout",
                std::vector<std::pair<std::string, Layout>>{{"flash_nhd", Layout::flash_nhd},
                                                            {"flash_hnd", Layout::flash_hnd},
                                                            {"packed_kv", Layout::packed_kv},
                                                            {"x_split", Layout::x_split},
                                                            {"x_split_shuffle", Layout::x_split_shuffle}},
                spec.layout);
  reader.choice("style", std::vector<std::pair<std::string, bool>>{{"neox", true}, {"gptj", false}},
                spec.is_neox);
  reader.boolean("apply_scale", spec.apply_scale);
  reader.boolean("match_unfused", spec.match_unfused);
}

void apply_pair_factors(std::vector<double>& factors, const std::string& key, const ObjectReader& reader) {
  if (!reader.find(key)) return;
  reader.numbers(key, factors);
  bool is_positive = std::all_of(factors.begin(), factors.end(), [](double factor) { return factor > 0; });
  if (factors.empty() || !is_positive) reader.reject(key, "a list of positive numbers");
}

void apply_scaling(RopeScaling& scaling, const ObjectReader& reader) {
  using Type = RopeScaling::Type;
  const std::vector<std::pair<std::string, Type>> types = {{"default", Type::none},
                                                           {"linear", Type::linear},
                                                           {"dynamic", Type::dynamic},
                                                           {"llama3", Type::llama3},
                                                           {"yarn", Type::yarn},
                                                           {"longrope", Type::longrope},
                                                           {"proportional", Type::proportional}};
  if (names_any(reader, {"rope_type", "type"})) scaling = {};
  reader.choice("type", types, scaling.type);  // the older key, which rope_type goes before
  reader.choice("rope_type", types, scaling.type);
  reader.number("factor", 1, scaling.factor);
  reader.number("low_freq_factor", 0, scaling.low_freq_factor);
  reader.number("high_freq_factor", 0, scaling.high_freq_factor);
  reader.number("beta_fast", 0, scaling.beta_fast);
  reader.number("beta_slow", 0, scaling.beta_slow);
  reader.number("attention_factor", 0, scaling.attention_factor);
  reader.number("mscale", 0, scaling.mscale);
  reader.number("mscale_all_dim", 0, scaling.mscale_all_dim);
  reader.number("original_max_position_embeddings", 1, scaling.original_max_position_embeddings);
  reader.number("max_position_embeddings", 1, scaling.max_position_embeddings);
  reader.boolean("truncate", scaling.truncate);
  apply_pair_factors(scaling.short_factor, "short_factor", reader);
  apply_pair_factors(scaling.long_factor, "long_factor", reader);
  reader.number("partial_rotary_factor", 0, scaling.partial_rotary_factor);
  if (scaling.partial_rotary_factor == 0 || scaling.partial_rotary_factor > 1)
    reader.reject("partial_rotary_factor", "a number above 0 and of at most 1");
}

void apply_table(TableSpec& table, const ObjectReader& reader) {
  if (const Json* width = reader.find("width")) {
    std::optional<int64_t> columns = as_integer(*width);
    if (*width == "half") {
      table.width = TableSpec::Width::half;
    } else if (*width == "full") {
      table.width = TableSpec::Width::full;
    } else if (columns && *columns >= 0 && *columns <= 2 * kMostDims) {
      table.width = *columns;
    } else {
      reader.reject("width",
                    "\"half\", \"full\" or a number of columns of at most " + std::to_string(2 * kMostDims));
    }
  }
  reader.integer("rows", 1, kMostRows, table.rows);
  reader.number("base", 0, table.base);
  if (table.base == 0) reader.reject("base", "a positive number");
  auto scaling =
      reader.object("scaling", {"rope_type", "type", "factor", "low_freq_factor", "high_freq_factor",
                                "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim",
                                "original_max_position_embeddings", "max_position_embeddings", "truncate",
                                "short_factor", "long_factor", "partial_rotary_factor"});
  if (scaling) apply_scaling(table.scaling, *scaling);
}

std::vector<Request> read_requests(const ObjectReader& reader) {
  const Json& list = *reader.find("requests");
  if (!list.is_array() || list.empty()) reader.reject("requests", "a list of at least one {start, length}");
  std::vector<Request> requests;
  for (size_t i = 0; i < list.size(); ++i) {
    ObjectReader item(list[i], reader.pointer_to("requests") + "/" + std::to_string(i), {"start", "length"});
    Request request;
    item.integer("start", 0, kMostRows, request.start);
    item.integer("length", 1, kMostRows, request.length);
    requests.push_back(request);
  }
  return requests;
}

void apply_offsets(OffsetsSpec& offsets, const ObjectReader& reader) {
  using Pattern = OffsetsSpec::Pattern;
  if (names_any(reader, {"pattern", "value", "limit", "values"})) {
    offsets.pattern.reset();
    offsets.value.reset();
    offsets.limit.reset();
    offsets.values.reset();
  }
  reader.choice("pattern",
                std::vector<std::pair<std::string, Pattern>>{{"constant", Pattern::constant},
                                                             {"random", Pattern::random},
                                                             {"explicit", Pattern::explicit_values}},
                offsets.pattern);
  reader.integer("value", -kAnyInt64 - 1, kAnyInt64, offsets.value);
  reader.integer("limit", 1, kMostRows, offsets.limit);
  reader.integers("values", -kAnyInt64 - 1, kAnyInt64, offsets.values);
  reader.choice("dtype", kIndexDTypes, offsets.dtype);
}

// One list of integers, or one for each of several axes.
std::vector<std::vector<int64_t>> read_position_values(const ObjectReader& reader) {
  const Json& value = *reader.find("values");
  bool has_axes = value.is_array() && !value.empty() && value.front().is_array();
  if (!has_axes) {
    std::vector<int64_t> values;
    reader.integers("values", -kAnyInt64 - 1, kAnyInt64, values);
    return {values};
  }
  std::vector<std::vector<int64_t>> axes;
  for (size_t i = 0; i < value.size(); ++i) {
    std::string axis = std::to_string(i);
    Json list = {{axis, value[i]}};
    ObjectReader(list, reader.pointer_to("values"), {axis})
        .integers(axis, -kAnyInt64 - 1, kAnyInt64, axes.emplace_back());
  }
  bool are_alike = std::all_of(axes.begin(), axes.end(),
                               [&](const auto& values) { return values.size() == axes.front().size(); });
  if (axes.size() < 2 || !are_alike)
    reader.reject("values", "a list of integers, or at least two lists of them, all of one length");
  return axes;
}

void apply_positions(PositionsSpec& positions, const ObjectReader& reader) {
  using Pattern = PositionsSpec::Pattern;
  if (names_any(reader, {"pattern", "requests", "values"})) {
    positions.pattern.reset();
    positions.start.reset();
    positions.requests.reset();
    positions.values.reset();
  }
  reader.integer("axes", 1, kMostAxes, positions.axes);
  reader.choice("pattern",
                std::vector<std::pair<std::string, Pattern>>{{"contiguous", Pattern::contiguous},
                                                             {"requests", Pattern::requests},
                                                             {"random", Pattern::random},
                                                             {"explicit", Pattern::explicit_values}},
                positions.pattern);
  reader.integer("start", 0, kMostRows, positions.start);
  if (reader.find("requests")) positions.requests = read_requests(reader);
  if (reader.find("values")) positions.values = read_position_values(reader);
  reader.choice("dtype", kIndexDTypes, positions.dtype);
  if (auto offsets = reader.object("offsets", {"pattern", "value", "limit", "values", "dtype"})) {
    if (!positions.offsets) positions.offsets.emplace();
    apply_offsets(*positions.offsets, *offsets);
  }
}

void apply_window(WindowSpec& window, const ObjectReader& reader) {
  if (reader.find("values")) {
    window.window.reset();
    window.evicted.reset();
  }
  if (names_any(reader, {"window", "evicted"})) window.values.reset();
  reader.integer("window", 1, kMostRows, window.window);
  reader.number("evicted", 0, window.evicted);
  if (window.evicted.value_or(0) > 1) reader.reject("evicted", "a fraction from 0 to 1");
  reader.integers("values", -kAnyInt64 - 1, kAnyInt64, window.values);
  reader.choice("dtype", kIndexDTypes, window.dtype);
}

void apply_slots(SlotsSpec& slots, const ObjectReader& reader) {
  using Pattern = SlotsSpec::Pattern;
  if (names_any(reader, {"pattern", "values"})) {
    slots.pattern.reset();
    slots.start.reset();
    slots.values.reset();
  }
  reader.choice("pattern",
                std::vector<std::pair<std::string, Pattern>>{{"sequential", Pattern::sequential},
                                                             {"blocks", Pattern::blocks},
                                                             {"random", Pattern::random},
                                                             {"explicit", Pattern::explicit_values}},
                slots.pattern);
  reader.integer("start", 0, kMostRows, slots.start);
  reader.integers("values", -kAnyInt64 - 1, kAnyInt64, slots.values);
  if (const Json* padding = reader.find("padding")) {
    bool is_fraction = padding->is_number() && padding->get<double>() >= 0 && padding->get<double>() <= 1;
    if (!is_fraction && !padding->is_array())
      reader.reject("padding", "a fraction from 0 to 1 or a list of rows");
    if (is_fraction) slots.padding = padding->get<double>();
    if (padding->is_array()) {
      std::vector<int64_t> rows;
      reader.integers("padding", 0, kMostRows, rows);
      slots.padding = rows;
    }
  }
  reader.choice("dtype", kIndexDTypes, slots.dtype);
  if (auto window = reader.object("swa", {"window", "evicted", "values", "dtype"})) {
    if (!slots.swa) slots.swa.emplace();
    apply_window(*slots.swa, *window);
  }
}

void apply_model(std::optional<ModelSpec>& model, const ObjectReader& reader) {
  if (!model) model.emplace();
  reader.text("name", model->name);
  reader.integer("tensor_parallel", 1, kMostHeads, model->tensor_parallel);
  const Json* config = reader.find("config");
  if (config && !config->is_object())
    reader.reject("config", "an object with fields of the model's config.json");
}

void apply_scale(std::optional<Scale>& scale, const std::string& key, const ObjectReader& reader) {
  const Json* value = reader.find(key);
  if (!value) return;
  if (value->is_array()) {
    std::vector<double> numbers;
    reader.numbers(key, numbers);
    scale = numbers;
  } else if (value->is_number()) {
    scale = value->get<double>();
  } else {
    reader.reject(key, "a number or a list of numbers");
  }
}

void apply_model_options(CaseSpec& spec, const ObjectReader& reader) {
  if (auto scales = reader.object("scales", {"k", "v", "q"})) {
    apply_scale(spec.k_scale, "k", *scales);
    apply_scale(spec.v_scale, "v", *scales);
    apply_scale(spec.q_scale, "q", *scales);
  }
  if (auto norm = reader.object("norm", {"q", "k", "eps", "plus_one", "weight_dtype"})) {
    if (!spec.norm) spec.norm.emplace();
    norm->boolean("q", spec.norm->q);
    norm->boolean("k", spec.norm->k);
    norm->number("eps", 0, spec.norm->eps);
    norm->boolean("plus_one", spec.norm->plus_one);
    norm->choice("weight_dtype", std::vector<std::pair<std::string, bool>>{{"auto", false}, {"fp32", true}},
                 spec.norm->has_fp32_weights);
  }
  if (auto mrope = reader.object("mrope", {"section", "interleaved"})) {
    if (!spec.mrope) spec.mrope.emplace();
    mrope->integers("section", 0, kMostDims, spec.mrope->section);
    mrope->boolean("interleaved", spec.mrope->interleaved);
  }
}

void apply_inputs_and_outputs(CaseSpec& spec, const ObjectReader& reader) {
  using Values = InputsSpec::Values;
  if (auto inputs = reader.object("inputs", {"strides", "in_place", "values"})) {
    apply_strides(spec.inputs, *inputs);
    inputs->boolean("in_place", spec.inputs.in_place);
    inputs->choice("values",
                   std::vector<std::pair<std::string, Values>>{{"normal", Values::normal},
                                                               {"ramp", Values::ramp},
                                                               {"extremes", Values::extremes},
                                                               {"nan_padding", Values::nan_padding}},
                   spec.inputs.values);
  }
  if (auto outputs = reader.object("outputs", {"q_out", "k_out", "zeros_out"})) {
    using Zeros = OutputsSpec::Zeros;
    outputs->boolean("q_out", spec.outputs.q_out);
    outputs->boolean("k_out", spec.outputs.k_out);
    if (const Json* zeros = outputs->find("zeros_out")) {
      if (!zeros->is_boolean() && *zeros != "allocated")
        outputs->reject("zeros_out", "true, false or \"allocated\"");
      spec.outputs.zeros_out = *zeros == true    ? Zeros::given
                               : *zeros == false ? Zeros::none
                                                 : Zeros::allocated;
    }
  }
}

void apply_judgement(CaseSpec& spec, const ObjectReader& reader) {
  if (auto misuse = reader.object("misuse", {"tensor", "fault", "with"})) spec.misuse = read_misuse(*misuse);
  if (auto expect = reader.object("expect", {"error"})) {
    std::string pattern;
    expect->text("error", pattern);
    if (pattern.empty()) expect->reject("error", "a regular expression");
    try {
      std::regex compiled(pattern);
    } catch (const std::regex_error& error) {
      expect->reject("error", std::string("a regular expression (") + error.what() + ")");
    }
    spec.expected_error = pattern;
  }
  if (auto tolerance = reader.object("tolerance", {"ulps", "relative"})) {
    tolerance->number("ulps", 0, spec.tolerance.ulps);
    tolerance->number("relative", 0, spec.tolerance.relative);
  }
  reader.texts("tags", spec.tags);
}

}  // namespace

void apply_keys(CaseSpec& spec, const Json& keys, const std::string& pointer, bool is_case) {
  std::vector<std::string> known = {"num_tokens",  "num_kv_rows",    "num_slots",
                                    "q_heads",     "kv_heads",       "head_dim",
                                    "v_head_dim",  "rotary_dim",     "rotary_dim_offset",
                                    "dtype",       "kv_cache_dtype", "table_dtype",
                                    "q_out_dtype", "layout",         "x",
                                    "block_size",  "num_blocks",     "page_padding",
                                    "style",       "table",          "positions",
                                    "slots",       "scales",         "apply_scale",
                                    "norm",        "mrope",          "match_unfused",
                                    "inputs",      "outputs",        "misuse",
                                    "expect",      "tolerance",      "tags",
                                    "seed",        "model"};
  if (is_case) known.insert(known.begin(), {"id", "sweep"});
  ObjectReader reader(keys, pointer, known);
  reader.text("id", spec.id);
  if (auto model = reader.object("model", {"name", "tensor_parallel", "config"}))
    apply_model(spec.model, *model);
  apply_sizes(spec, reader);
  apply_choices(spec, reader);
  if (auto table = reader.object("table", {"width", "rows", "base", "scaling"}))
    apply_table(spec.table, *table);
  if (auto positions = reader.object(
          "positions", {"pattern", "start", "requests", "values", "axes", "dtype", "offsets"})) {
    apply_positions(spec.positions, *positions);
  }
  if (auto slots = reader.object("slots", {"pattern", "start", "values", "padding", "dtype", "swa"})) {
    apply_slots(spec.slots, *slots);
  }
  apply_model_options(spec, reader);
  apply_inputs_and_outputs(spec, reader);
  apply_judgement(spec, reader);
}

}  // namespace kvrope::regress
