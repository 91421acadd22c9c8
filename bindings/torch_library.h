// The operators' C++ signatures, which their kernels and their typed callers share: the schemas' arguments in
// order.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/OptionalArrayRef.h>

#include <optional>
#include <string_view>

namespace kvrope {

using FusedSignature = void(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& key_cache, const at::Tensor& value_cache,
                            const at::Tensor& slot_mapping, const at::Tensor& pos, const at::Tensor& cos_sin,
                            const std::optional<at::Tensor>& k_scale,
                            const std::optional<at::Tensor>& v_scale, bool is_neox, bool flash_layout,
                            bool apply_scale, const std::optional<at::Tensor>& offs, const at::Tensor& q_out,
                            const at::Tensor& k_out, const std::optional<at::Tensor>& zeros_out,
                            const std::optional<at::Tensor>& swa_slot_mapping,
                            std::optional<int64_t> rotary_dim, int64_t rotary_dim_offset,
                            std::string_view kv_cache_dtype, const std::optional<at::Tensor>& q_scale,
                            bool match_unfused, at::OptionalIntArrayRef mrope_section, bool mrope_interleaved,
                            const std::optional<at::Tensor>& q_weight,
                            const std::optional<at::Tensor>& k_weight, double eps, bool weight_plus_one);

using RopeSignature = void(const at::Tensor& q, const std::optional<at::Tensor>& k, const at::Tensor& pos,
                           const at::Tensor& cos_sin, bool is_neox, const std::optional<at::Tensor>& offs,
                           const at::Tensor& q_out, const std::optional<at::Tensor>& k_out,
                           std::optional<int64_t> rotary_dim, int64_t rotary_dim_offset,
                           const std::optional<at::Tensor>& q_scale, at::OptionalIntArrayRef mrope_section,
                           bool mrope_interleaved, const std::optional<at::Tensor>& q_weight,
                           const std::optional<at::Tensor>& k_weight, double eps, bool weight_plus_one);

using ReshapeAndCacheSignature = void(const at::Tensor& k, const at::Tensor& v, const at::Tensor& key_cache,
                                      const at::Tensor& value_cache, const at::Tensor& slot_mapping,
                                      const std::optional<at::Tensor>& k_scale,
                                      const std::optional<at::Tensor>& v_scale, bool flash_layout,
                                      bool apply_scale, const std::optional<at::Tensor>& swa_slot_mapping,
                                      std::string_view kv_cache_dtype);

}  // namespace kvrope
