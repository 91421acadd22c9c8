#include "recorded_case.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "recorded_rows.h"

namespace kvrope {
namespace {

constexpr int64_t kMostStride = 2147483647;  // of a case file

const char* dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return "fp16";
    case at::kBFloat16:
      return "bf16";
    case at::kFloat8_e4m3fn:
      return "fp8_e4m3";
    case at::kFloat8_e5m2:
      return "fp8_e5m2";
    default:
      return "fp32";
  }
}

std::string cache_dtype_name(const FusedArguments& args) {
  const at::ScalarType type = args.key_cache.scalar_type();
  if (type == at::kByte) return args.kv_cache_dtype == "fp8_e5m2" ? "fp8_e5m2_uint8" : "fp8_e4m3_uint8";
  return type == args.k.scalar_type() ? "auto" : dtype_name(type);
}

// Elements from the tensor's first to its last and one more, its first axis left out.
int64_t extent_of_inner_axes(const at::Tensor& tensor) {
  int64_t extent = 1;
  for (int64_t axis = 1; axis < tensor.dim(); ++axis) {
    extent += (tensor.size(axis) - 1) * tensor.stride(axis);
  }
  return extent;
}

// The stride of an axis of size 1 says nothing, but the case's caches may have more blocks than the call's.
std::vector<int64_t> meaningful_strides(const at::Tensor& tensor) {
  std::vector<int64_t> strides = tensor.strides().vec();
  for (size_t axis = 0; axis < strides.size(); ++axis) {
    if (tensor.size(static_cast<int64_t>(axis)) != 1) continue;
    strides[axis] = axis == 0 ? extent_of_inner_axes(tensor) : std::min(strides[axis], kMostStride);
  }
  return strides;
}

bool elements_are_distinct(const at::Tensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> axes;
  for (int64_t axis = 0; axis < tensor.dim(); ++axis) {
    if (tensor.size(axis) > 1) axes.emplace_back(tensor.stride(axis), tensor.size(axis));
  }
  std::sort(axes.begin(), axes.end());
  int64_t taken = 1;
  for (auto [stride, size] : axes) {
    if (stride < taken) return false;
    taken += (size - 1) * stride;
  }
  return true;
}

class CaseRecorder {
 public:
  CaseRecorder(const FusedArguments& args, bool is_captured) : args_(args), is_captured_(is_captured) {}

  RecordedCase record() {
    add_sizes();
    add_formats();
    add_options();
    add_memory();
    const RecordedRows rows = find_rows();
    const std::string id = name(rows);
    Json keys = {{"id", id}, {"tags", tags_}};
    keys.update(keys_);
    keys["table"]["rows"] = std::max<int64_t>(rows.table_rows, 1);
    if (rows.num_blocks > 0) keys["num_blocks"] = rows.num_blocks;
    keys["positions"] = rows.positions;
    keys["slots"] = rows.slots;
    if (rows.has_bad_row) keys["expect"] = {{"error", "\\b(pos|slot_mapping|swa_slot_mapping)\\b"}};
    return {id, keys};
  }

 private:
  bool is_split() const { return !args_.flash_layout; }
  int64_t block_size() const { return args_.key_cache.size(is_split() ? 3 : 1); }

  void add_sizes() {
    const int64_t tokens = args_.q.size(0), rows = args_.k.size(0), slots = args_.slot_mapping.size(0);
    keys_["num_tokens"] = tokens;
    if (rows != tokens) keys_["num_kv_rows"] = rows;
    if (slots != tokens) keys_["num_slots"] = slots;
    keys_["q_heads"] = args_.q.size(1);
    keys_["kv_heads"] = args_.k.size(1);
    keys_["head_dim"] = args_.q.size(2);
    if (args_.v.size(2) != args_.q.size(2)) keys_["v_head_dim"] = args_.v.size(2);
    if (args_.rotary_dim) keys_["rotary_dim"] = *args_.rotary_dim;
    if (args_.rotary_dim_offset != 0) keys_["rotary_dim_offset"] = args_.rotary_dim_offset;
    const int64_t rotated = args_.rotary_dim.value_or(args_.q.size(2));
    keys_["table"] = {{"width", args_.cos_sin.size(1) == 2 * rotated ? "full" : "half"},
                      {"rows", args_.cos_sin.size(0)}};
  }

  void add_formats() {
    keys_["dtype"] = dtype_name(args_.q.scalar_type());
    keys_["kv_cache_dtype"] = cache_dtype_name(args_);
    if (args_.q_out->scalar_type() != args_.q.scalar_type())
      keys_["q_out_dtype"] = dtype_name(args_.q_out->scalar_type());
    keys_["table_dtype"] = dtype_name(args_.cos_sin.scalar_type());
    const bool is_shuffled = is_split() && args_.value_cache.dim() == 5;
    keys_["layout"] = !is_split() ? "flash_nhd" : is_shuffled ? "x_split_shuffle" : "x_split";
    if (is_split()) keys_["x"] = args_.key_cache.size(4);
    keys_["block_size"] = block_size();
    keys_["style"] = args_.is_neox ? "neox" : "gptj";
  }

  // Values stand in that tell the scales apart.
  void add_scale(const char* name, const std::optional<at::Tensor>& scale, double value) {
    if (!scale) return;
    keys_["scales"][name] =
        scale->dim() == 0 ? Json(value) : Json(std::vector<double>(scale->numel(), value));
  }

  void add_norm() {
    if (!args_.q_weight && !args_.k_weight) return;
    Json& norm = keys_["norm"];
    norm = {{"q", args_.q_weight.has_value()}, {"k", args_.k_weight.has_value()}};
    if (args_.eps != 1e-6) norm["eps"] = args_.eps;
    if (args_.weight_plus_one) norm["plus_one"] = true;
    const auto is_fp32 = [](const at::Tensor& weight) { return weight.scalar_type() == at::kFloat; };
    const at::Tensor& first = args_.q_weight ? *args_.q_weight : *args_.k_weight;
    if (is_fp32(first) && args_.q.scalar_type() != at::kFloat) norm["weight_dtype"] = "fp32";
    const bool is_one_dtype = !args_.k_weight || is_fp32(first) == is_fp32(*args_.k_weight);
    if (!is_one_dtype) tags_.push_back("weights-of-one-dtype");  // a case cannot have two
  }

  void add_mrope() {
    if (!args_.mrope_section) return;
    keys_["mrope"]["section"] = *args_.mrope_section;
    if (args_.mrope_interleaved) keys_["mrope"]["interleaved"] = true;
  }

  void add_options() {
    add_norm();
    add_mrope();
    add_scale("q", args_.q_scale, 0.25);
    if (args_.apply_scale) {  // else they are ignored, whatever they are
      add_scale("k", args_.k_scale, 0.5);
      add_scale("v", args_.v_scale, 2);
    }
    if (!args_.apply_scale) keys_["apply_scale"] = false;
    if (args_.match_unfused) keys_["match_unfused"] = true;
    if (args_.zeros_out) keys_["outputs"] = {{"zeros_out", true}};
  }

  // --- Where tensors lie

  static bool is_same_memory(const at::Tensor& a, const at::Tensor& b) {
    return a.numel() > 0 && a.const_data_ptr() == b.const_data_ptr() && a.strides() == b.strides();
  }

  void add_tensor(const char* name, const at::Tensor& tensor) {
    const int64_t address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 64);
    const int64_t offset = tensor.numel() == 0 ? 0 : address / tensor.element_size();
    const std::vector<int64_t> strides = meaningful_strides(tensor);
    const bool fits = *std::max_element(strides.begin(), strides.end()) <= kMostStride;
    Json place = Json::object();
    if (tensor.numel() > 0 && !tensor.is_contiguous()) {
      if (fits && elements_are_distinct(tensor)) {
        place["strides"] = strides;
      } else {
        tags_.push_back(std::string("contiguous-") + name);  // a case cannot have these strides
      }
    }
    if (offset != 0) place["offset"] = offset;
    if (!place.empty()) strides_[name] = place;
  }

  void add_memory() {
    const bool q_in_place = is_same_memory(*args_.q_out, args_.q);
    const bool k_in_place = is_same_memory(*args_.k_out, args_.k);
    const bool q_may_be = args_.q.numel() > 0 && !keys_.contains("q_out_dtype");  // an fp8 q_out is never q
    const bool is_in_place = (q_in_place || !q_may_be) && k_in_place;
    if (q_in_place != k_in_place && q_may_be) tags_.push_back("in-place-in-part");
    add_tensor("q", args_.q);
    add_tensor("k", args_.k);
    add_tensor("v", args_.v);
    add_tensor("cos_sin", args_.cos_sin);
    if (!is_in_place || keys_.contains("q_out_dtype")) add_tensor("q_out", *args_.q_out);
    if (!is_in_place) add_tensor("k_out", *args_.k_out);
    if (args_.zeros_out) add_tensor("zeros_out", *args_.zeros_out);
    add_tensor("key_cache", args_.key_cache);
    add_tensor("value_cache", args_.value_cache);
    add_tensor("slot_mapping", args_.slot_mapping);
    add_tensor("pos", args_.pos);
    if (args_.offs) add_tensor("offs", *args_.offs);
    if (args_.swa_slot_mapping) add_tensor("swa_slot_mapping", *args_.swa_slot_mapping);
    if (args_.q_weight) add_tensor("q_weight", *args_.q_weight);
    if (args_.k_weight) add_tensor("k_weight", *args_.k_weight);
    Json inputs = Json::object();
    if (!strides_.empty()) inputs["strides"] = strides_;
    if (is_in_place) inputs["in_place"] = true;
    if (!inputs.empty()) keys_["inputs"] = inputs;
  }

  // --- Rows

  RecordedRows find_rows() {
    const int64_t num_blocks = args_.key_cache.size(0);
    const auto blocks_interleave = [](const at::Tensor& cache) {
      return cache.size(0) > 1 && cache.stride(0) < extent_of_inner_axes(cache);
    };
    const bool keeps_blocks = blocks_interleave(args_.key_cache) || blocks_interleave(args_.value_cache);
    if (is_captured_) {
      tags_.push_back("captured");
      return unknown_rows(args_, num_blocks, block_size(), keeps_blocks);
    }
    return read_rows(args_, num_blocks, block_size(), keeps_blocks);
  }

  // What tells calls apart, in short and as a hash (FNV-1a) that is the same in every process.
  std::string name(const RecordedRows& rows) const {
    const std::string text = keys_.dump() + rows.pattern.dump() + Json(tags_).dump();
    uint64_t hash = 14695981039346656037u;
    for (char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211u;
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
    return keys_["layout"].get<std::string>() + "/" + keys_["dtype"].get<std::string>() + "/tokens-" +
           std::to_string(args_.q.size(0)) + "/" + digits;
  }

  const FusedArguments& args_;
  bool is_captured_;
  std::vector<std::string> tags_ = {"recorded"};
  Json keys_ = Json::object(), strides_ = Json::object();
};

}  // namespace

RecordedCase make_recorded_case(const FusedArguments& args, bool is_captured) {
  return CaseRecorder(args, is_captured).record();
}

}  // namespace kvrope
