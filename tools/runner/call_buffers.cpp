#include "runner/call_buffers.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

namespace kvrope::regress {
namespace {

using Before = BufferComparison::Before;

constexpr int64_t kGuardBytes = 4096;
constexpr uint8_t kNanByte = 0xff;  // bytes of it are NaN in every floating-point format

at::ScalarType scalar_type(NumberFormat format) {
  switch (format) {
    case NumberFormat::fp16:
      return at::kHalf;
    case NumberFormat::bf16:
      return at::kBFloat16;
    case NumberFormat::fp32:
      return at::kFloat;
    case NumberFormat::fp8_e4m3:
      return at::kFloat8_e4m3fn;
    case NumberFormat::fp8_e5m2:
      return at::kFloat8_e5m2;
  }
  return at::kFloat;
}

void upload(Buffer& buffer, c10::Device device) {
  at::Tensor host =
      at::from_blob(buffer.before.data(), {static_cast<int64_t>(buffer.before.size())}, at::kByte);
  constexpr bool kWaits = true, kAlsoOnCpu = true;
  buffer.bytes = host.to(device, at::kByte, !kWaits, kAlsoOnCpu);
}

// Visits the elements in the order of the indices; the visitor is given the element of the buffer.
template <class Visit>
void for_each_element(const Placement& place, size_t axis, int64_t element, Visit visit) {
  if (axis == place.sizes.size()) {
    visit(element);
    return;
  }
  for (int64_t i = 0; i < place.sizes[axis]; ++i) {
    for_each_element(place, axis + 1, element + i * place.strides[axis], visit);
  }
}

}  // namespace

CallBuffers::CallBuffers(const CaseSpec& spec, const CallData& data, c10::Device device)
    : spec_(spec), device_(device), caches_(spec, data.plan.num_blocks) {
  add_inputs(data);
  add_indices(data.plan);
  add_outputs();
  add_caches();
  add_options(data);
}

// A buffer for one tensor, or for all views of one extent.
View CallBuffers::add(const std::string& name, NumberFormat format, Placement place, Before state) {
  int64_t bytes = place.extent * bytes_of(format);
  bytes = (bytes + 63) / 64 * 64;  // any dtype divides it
  uint8_t fill = state == Before::poisoned ? kCanary : kNanByte;
  buffers_.push_back(
      {name, state, std::vector<uint8_t>(static_cast<size_t>(bytes + 2 * kGuardBytes), fill), {}});
  place.offset += kGuardBytes / bytes_of(format);
  return {buffers_.size() - 1, format, place};
}

View CallBuffers::share(const View& view, Placement place) const {
  place.offset += kGuardBytes / bytes_of(view.format);
  return {view.buffer, view.format, place};
}

// All threads share the first axis of large tensors.
void CallBuffers::write(const View& view, const std::vector<float>& values) {
  constexpr int64_t kValuesWorthAThread = 1 << 15;
  const Placement& place = view.place;
  uint8_t* bytes = buffers_[view.buffer].before.data();
  auto write_inner = [&](size_t axis, int64_t first_element, int64_t first_value) {
    auto next = static_cast<size_t>(first_value);
    for_each_element(place, axis, first_element, [&](int64_t element) {
      store_bits(view.format, encode(view.format, values[next++]), bytes + view.byte(element));
    });
  };
  if (place.sizes.empty()) return write_inner(0, place.offset, 0);
  int64_t rows = place.sizes.front();
  int64_t row_size = std::max<int64_t>(1, static_cast<int64_t>(values.size()) / std::max<int64_t>(1, rows));
  bool is_apart = place.strides.front() != 0;  // of rows in one place the last stays
  int64_t grain = is_apart ? kValuesWorthAThread / row_size + 1 : rows;
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      write_inner(1, place.offset + row * place.strides.front(), row * row_size);
    }
  });
}

at::Tensor CallBuffers::tensor(const View& view, std::optional<at::ScalarType> type) {
  Buffer& buffer = buffers_[view.buffer];
  if (!buffer.bytes.defined()) upload(buffer, device_);
  at::Tensor elements = buffer.bytes.view(type.value_or(scalar_type(view.format)));
  return elements.as_strided(view.place.sizes, view.place.strides, view.place.offset);
}

void CallBuffers::add_inputs(const CallData& data) {
  QkvPlacement place = place_qkv(spec_);
  auto separate = [&](const char* name, const Placement& usual) {
    return add(name, spec_.dtype, place_tensor(spec_, name, usual), Before::holds_values);
  };
  q_ = place.is_fused ? add("qkv", spec_.dtype, place.q, Before::holds_values) : separate("q", place.q);
  k_ = place.is_fused ? share(*q_, place.k) : separate("k", place.k);
  View v = place.is_fused ? share(*q_, place.v) : separate("v", place.v);
  Placement table = place_tensor(spec_, "cos_sin", place_table(spec_, data.plan.table_rows));
  View cos_sin = add("cos_sin", spec_.table_dtype, table, Before::holds_values);
  write(*q_, data.q);
  write(*k_, data.k);
  write(v, data.v);
  write(cos_sin, data.cos_sin);
  arguments_.q = tensor(*q_);
  arguments_.k = tensor(*k_);
  arguments_.v = tensor(v);
  arguments_.cos_sin = tensor(cos_sin);
}

// In a buffer of `around`.
at::Tensor CallBuffers::integers(const std::string& name, const Placement& usual,
                                 const std::vector<int64_t>& values, IndexDType dtype, int64_t around) {
  bool is_int32 = dtype == IndexDType::int32;
  int64_t item = is_int32 ? 4 : 8, guard = kGuardBytes / item;
  Placement place = place_tensor(spec_, name, usual);
  place.extent = (place.extent + 1) / 2 * 2;  // int64 divides what int32 takes
  std::vector<int64_t> all(static_cast<size_t>(2 * guard + place.extent), around);
  size_t next = 0;
  for_each_element(place, 0, guard + place.offset,
                   [&](int64_t element) { all[static_cast<size_t>(element)] = values[next++]; });
  std::vector<uint8_t> bytes(all.size() * static_cast<size_t>(item));
  for (size_t i = 0; i < all.size(); ++i) {  // little-endian: the low bytes come first
    std::memcpy(bytes.data() + i * static_cast<size_t>(item), &all[i], static_cast<size_t>(item));
  }
  buffers_.push_back({name, Before::holds_values, std::move(bytes), {}});
  upload(buffers_.back(), device_);
  at::Tensor elements = buffers_.back().bytes.view(is_int32 ? at::kInt : at::kLong);
  return elements.as_strided(place.sizes, place.strides, guard + place.offset);
}

void CallBuffers::add_indices(const RowPlan& plan) {
  constexpr int64_t kInNoTable = -77;
  auto indices = [&](const char* name, const std::vector<int64_t>& values, IndexDType dtype, int64_t around) {
    return integers(name, place_indices(spec_, static_cast<int64_t>(values.size())), values, dtype, around);
  };
  std::vector<int64_t> positions;
  for (const std::vector<int64_t>& axis : plan.pos)
    positions.insert(positions.end(), axis.begin(), axis.end());
  Placement place = place_positions(spec_, static_cast<int64_t>(plan.pos.size()),
                                    static_cast<int64_t>(plan.pos.front().size()));
  arguments_.pos = integers("pos", place, positions, spec_.positions.dtype, kInNoTable);
  if (plan.offs) arguments_.offs = indices("offs", *plan.offs, spec_.positions.offsets->dtype, kInNoTable);
  arguments_.slot_mapping = indices("slot_mapping", plan.slot_mapping, spec_.slots.dtype, plan.unused_slot);
  if (plan.swa_slot_mapping) {
    int64_t unused =
        plan.unused_slot < 0 ? -1 : plan.swa_slot_mapping->at(static_cast<size_t>(plan.unused_slot));
    arguments_.swa_slot_mapping =
        indices("swa_slot_mapping", *plan.swa_slot_mapping, spec_.slots.swa->dtype, unused);
  }
}

void CallBuffers::add_outputs() {
  auto poisoned = [&](const char* name, NumberFormat format, int64_t rows, int64_t heads,
                      bool may_transpose) {
    Placement usual = place_output(spec_, rows, heads, spec_.head_dim, may_transpose);
    return add(name, format, place_tensor(spec_, name, usual), Before::poisoned);
  };
  if (spec_.q_is_in_place()) {
    q_out_ = q_;
    arguments_.q_out = arguments_.q;
  } else if (spec_.outputs.q_out) {
    // It must be viewable as (T, QH * D), which a transposed one is not.
    q_out_ = poisoned("q_out", spec_.q_out_format(), spec_.tokens(), spec_.q_heads, false);
    arguments_.q_out = tensor(*q_out_);
  }
  if (spec_.inputs.in_place) {
    k_out_ = k_;
    arguments_.k_out = arguments_.k;
  } else if (spec_.outputs.k_out) {
    k_out_ = poisoned("k_out", spec_.dtype, spec_.kv_rows(), spec_.kv_heads, true);
    arguments_.k_out = tensor(*k_out_);
  }
  arguments_.output_zeros = spec_.outputs.zeros_out == OutputsSpec::Zeros::allocated;
  if (spec_.outputs.zeros_out == OutputsSpec::Zeros::given) {
    zeros_out_ = poisoned("zeros_out", spec_.dtype, spec_.tokens(), spec_.q_heads, true);
    arguments_.zeros_out = tensor(*zeros_out_);
  }
}

void CallBuffers::add_caches() {
  NumberFormat format = spec_.cache_format();
  const char* key_name = caches_.is_shared() ? "kv_cache" : "key_cache";
  key_cache_ = add(key_name, format, caches_.key(), Before::poisoned);
  value_cache_ = caches_.is_shared() ? share(*key_cache_, caches_.value())
                                     : add("value_cache", format, caches_.value(), Before::poisoned);
  auto type = spec_.cache_is_uint8() ? std::optional(at::kByte) : std::nullopt;
  arguments_.key_cache = tensor(*key_cache_, type);
  arguments_.value_cache = tensor(*value_cache_, type);
  if (is_fp8(format)) arguments_.kv_cache_dtype = name_of(format);
}

std::optional<at::Tensor> CallBuffers::scale(const std::string& name, const std::optional<Scale>& spec,
                                             const std::optional<std::vector<float>>& values) {
  if (!spec) return std::nullopt;
  auto count = static_cast<int64_t>(values->size());
  Placement place = {0, {count}, {1}, count};
  if (std::holds_alternative<double>(*spec)) place = {0, {}, {}, 1};
  View view = add(name, NumberFormat::fp32, place, Before::holds_values);
  write(view, *values);
  return tensor(view);
}

at::Tensor CallBuffers::weight(const std::string& name, const std::vector<float>& values) {
  View view =
      add(name, spec_.weight_format(), place_tensor(spec_, name, place_weight(spec_)), Before::holds_values);
  write(view, values);
  return tensor(view);
}

void CallBuffers::add_options(const CallData& data) {
  arguments_.k_scale = scale("k_scale", spec_.k_scale, data.k_scale);
  arguments_.v_scale = scale("v_scale", spec_.v_scale, data.v_scale);
  arguments_.q_scale = scale("q_scale", spec_.q_scale, data.q_scale);
  arguments_.apply_scale = spec_.apply_scale;
  arguments_.is_neox = spec_.is_neox;
  arguments_.flash_layout = spec_.is_flash();
  arguments_.rotary_dim = spec_.rotary_dim;
  arguments_.rotary_dim_offset = spec_.rotary_dim_offset;
  arguments_.match_unfused = spec_.match_unfused;
  if (spec_.mrope) {
    arguments_.mrope_section = spec_.mrope->section;
    arguments_.mrope_interleaved = spec_.mrope->interleaved;
  }
  if (spec_.norm) {
    if (spec_.norm->q) arguments_.q_weight = weight("q_weight", data.q_weight);
    if (spec_.norm->k) arguments_.k_weight = weight("k_weight", data.k_weight);
    arguments_.eps = spec_.norm->eps;
    arguments_.weight_plus_one = spec_.norm->plus_one;
  }
}

int64_t CallBuffers::key_element(int64_t slot, int64_t head, int64_t dim) const {
  return caches_.key_element(slot, head, dim) + kGuardBytes / bytes_of(key_cache_->format);
}

int64_t CallBuffers::value_element(int64_t slot, int64_t head, int64_t dim) const {
  return caches_.value_element(slot, head, dim) + kGuardBytes / bytes_of(value_cache_->format);
}

}  // namespace kvrope::regress
