#include "runner/parse_strides.h"

#include <algorithm>

namespace kvrope::regress {
namespace {

constexpr int64_t kMostElements = 2147483647;

const std::vector<std::string> kTensors = {"q",
                                           "k",
                                           "v",
                                           "cos_sin",
                                           "q_out",
                                           "k_out",
                                           "zeros_out",
                                           "key_cache",
                                           "value_cache",
                                           "slot_mapping",
                                           "pos",
                                           "offs",
                                           "swa_slot_mapping",
                                           "q_weight",
                                           "k_weight"};

void apply_tensors(InputsSpec& inputs, const ObjectReader& tensors) {
  inputs.strides = InputsSpec::Strides::contiguous;
  for (const std::string& name : kTensors) {
    auto reader = tensors.object(name, {"strides", "offset"});
    if (!reader) continue;
    TensorStrides& tensor = inputs.tensors[name];
    reader->integers("strides", 0, kMostElements, tensor.strides);
    reader->integer("offset", 0, kMostElements, tensor.offset);
  }
}

// What the tensor's values are written to, or nothing for an output or a cache: there the operation is the
// judge of overlaps.
std::vector<int64_t> input_sizes(const CaseSpec& spec, const std::string& name) {
  constexpr int64_t kTableRowsUntold = 256;
  if (name == "q") return {spec.tokens(), spec.q_heads, spec.head_dim};
  if (name == "k") return {spec.kv_rows(), spec.kv_heads, spec.head_dim};
  if (name == "v") return {spec.kv_rows(), spec.kv_heads, spec.value_dim()};
  if (name == "cos_sin") return {spec.table.rows.value_or(kTableRowsUntold), spec.table_width()};
  if (name == "slot_mapping") return {spec.slots_length()};
  if (name == "pos" && spec.position_axes() > 1) return {spec.position_axes(), spec.tokens()};
  if (name == "pos" || name == "offs") return {spec.tokens()};
  if (name == "swa_slot_mapping") return {kTableRowsUntold};
  if (name == "q_weight" || name == "k_weight") return {spec.head_dim};
  return {};
}

size_t rank_of(const CaseSpec& spec, const std::string& name) {
  if (name == "key_cache") return spec.is_flash() ? 4 : 5;
  if (name == "value_cache") return spec.layout == Layout::x_split_shuffle ? 5 : 4;
  size_t rank = input_sizes(spec, name).size();
  return rank == 0 ? 3 : rank;  // an output
}

// Each axis steps over all that the axes of smaller strides take.
bool elements_are_distinct(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  std::vector<std::pair<int64_t, int64_t>> axes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1) axes.emplace_back(strides[i], sizes[i]);
  }
  std::sort(axes.begin(), axes.end());
  double taken = 1;
  for (auto [stride, size] : axes) {
    if (static_cast<double>(stride) < taken) return false;
    taken += static_cast<double>(size - 1) * static_cast<double>(stride);
  }
  return true;
}

bool call_has(const CaseSpec& spec, const std::string& name) {
  if (name == "q_out") return spec.outputs.q_out && !spec.q_is_in_place();
  if (name == "k_out") return spec.outputs.k_out && !spec.inputs.in_place;
  if (name == "zeros_out") return spec.outputs.zeros_out == OutputsSpec::Zeros::given;
  if (name == "offs") return spec.positions.offsets.has_value();
  if (name == "swa_slot_mapping") return spec.slots.swa.has_value();
  if (name == "q_weight") return spec.norms_q();
  if (name == "k_weight") return spec.norms_k();
  return true;
}

}  // namespace

void apply_strides(InputsSpec& inputs, const ObjectReader& reader) {
  using Strides = InputsSpec::Strides;
  const Json* value = reader.find("strides");
  if (!value) return;
  if (value->is_object()) {
    apply_tensors(inputs, *reader.object("strides", kTensors));
    return;
  }
  inputs.tensors.clear();
  if (!value->is_string()) {
    reader.reject("strides", "a kind of strides or an object with strides and offset of each tensor");
  }
  reader.choice("strides",
                std::vector<std::pair<std::string, Strides>>{{"contiguous", Strides::contiguous},
                                                             {"fused_qkv", Strides::fused_qkv},
                                                             {"odd_offset", Strides::odd_offset},
                                                             {"transposed", Strides::transposed}},
                inputs.strides);
}

void check_strides(const CaseSpec& spec) {
  for (const auto& [name, tensor] : spec.inputs.tensors) {
    std::string pointer = spec.pointer + "/inputs/strides/" + name;
    if (!call_has(spec, name)) throw FileError(pointer, "belongs to a tensor that the call is not given");
    if (!tensor.strides) continue;
    size_t rank = rank_of(spec, name);
    if (tensor.strides->size() != rank) {
      throw FileError(pointer + "/strides", "must have " + std::to_string(rank) + " strides, got " +
                                                std::to_string(tensor.strides->size()));
    }
    if (!elements_are_distinct(input_sizes(spec, name), *tensor.strides)) {
      throw FileError(pointer + "/strides", "must keep the elements of an input apart");
    }
  }
}

}  // namespace kvrope::regress
