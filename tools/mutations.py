"""The faults that tools/mutate plants: in each file `old`, which must stand there once, becomes `new`.

reach says where the lines run:
  both    the CPU kernel and the GPU kernel
  cpu     the CPU kernel alone
  device  the GPU kernel alone, which a test runs on the host too
  gpu     instructions that only a GPU has
"""

from typing import NamedTuple


class Mutation(NamedTuple):
    fault: str
    reach: str
    file: str
    old: str
    new: str


MUTATIONS = [
    # --- rotation
    Mutation(
        "wrong pair in NeoX", "cpu", "kernels/rotate.cuh",
        "return is_neox ? pair + rotary_dim / 2 :",
        "return is_neox ? pair + rotary_dim / 2 - 1 :",
    ),
    Mutation(
        "sine index off by one", "cpu", "kernels/rotate.cuh",
        "return is_full_width ? rotary_dim : rotary_dim / 2;",
        "return is_full_width ? rotary_dim : rotary_dim / 2 - 1;",
    ),
    Mutation(
        "GPT-J takes the angle of the element, not of the pair", "cpu", "kernels/rotate.cuh",
        "if (!is_neox) return j / 2;",
        "if (!is_neox) return j;",
    ),
    Mutation(
        "sign of the sine", "cpu", "kernels/rotate.cuh",
        "return std::fma(a, cos, -(b * sin));",
        "return std::fma(a, cos, b * sin);",
    ),
    Mutation(
        "sign of the sine", "gpu", "kernels/rotate.cuh",
        "return __fmaf_rn(a, cos, -__fmul_rn(b, sin));",
        "return __fmaf_rn(a, cos, __fmul_rn(b, sin));",
    ),
    Mutation(
        "rotary offset ignored", "cpu", "cache_ops/cpu_head.h",
        "const FromT* from = head.from + head.first;",
        "const FromT* from = head.from;",
    ),
    Mutation(
        "second vector of a pair one vector too near", "device", "kernels/slice_dims.cuh",
        "return {lo, lo + static_cast<int>(static_cast<unsigned>(head.rotary_dim) / 2), true",
        "return {lo, lo + static_cast<int>(static_cast<unsigned>(head.rotary_dim) / 2) - (i > 0 ? kVec : 0), true",
    ),
    Mutation(
        "last partial vector dropped", "device", "kernels/slice_dims.cuh",
        "const int half = (passing + 1) / 2;",
        "const int half = passing / 2;",
    ),
    Mutation(
        "dims behind the rotated ones taken for those before", "device", "kernels/slice_dims.cuh",
        "return dim < head.rotary_dim_offset ? dim : dim + head.rotary_dim;",
        "return dim <= head.rotary_dim_offset ? dim : dim + head.rotary_dim;",
    ),
    # --- norm
    Mutation(
        "mean over one dim more", "cpu", "cache_ops/make_params.cpp",
        "1.0f / static_cast<float>(args.q.size(2))",
        "1.0f / static_cast<float>(args.q.size(2) + 1)",
    ),
    Mutation(
        "weight without its one", "both", "kernels/rms_norm.cuh",
        "return plus_one ? 1.0f + weight : weight;",
        "return plus_one ? 0.0f + weight : weight;",
    ),
    Mutation(
        "weight of Q for K", "cpu", "cache_ops/cpu_rows.cpp",
        "with_normed(x, p_.k_weight, k_factors_,",
        "with_normed(x, p_.k_weight, q_factors_,",
    ),
    Mutation(
        "weight of Q for K", "device", "kernels/rope_cache.cuh",
        "norm(p, plan, p.k_weight, dims,",
        "norm(p, plan, p.q_weight, dims,",
    ),
    Mutation(
        "KV-only rows normed", "cpu", "cache_ops/cpu_rows.cpp",
        "if (row >= p_.num_tokens)",
        "if (row >= p_.num_tokens && p_.k_weight.data == nullptr)",
    ),
    Mutation(
        "KV-only rows normed", "device", "kernels/rope_cache.cuh",
        "is_present<kNorm>(p.k_weight.data != nullptr) && is_token(p, work.token)",
        "is_present<kNorm>(p.k_weight.data != nullptr)",
    ),
    Mutation(
        "weights of 16 bits read as fp32", "device", "kernels/head_norm.cuh",
        "    if (weight_.is_fp32) {\n",
        "    if (!weight_.is_fp32) {\n",
    ),
    Mutation(
        "half of a row left out of its sum", "device", "kernels/row_sum.cuh",
        "if (distances & distance)",
        "if (distances / 2 & distance)",
    ),
    Mutation(
        "parts of other rows of the block summed", "device", "kernels/row_sum.cuh",
        "float* parts_of_row = parts + row * num_warps;",
        "float* parts_of_row = parts + row;",
    ),
    # --- axes of positions
    Mutation(
        "axis of the next frequency", "both", "kernels/mrope.cuh",
        "static_cast<uint32_t>(section.axis_of(i));",
        "static_cast<uint32_t>(section.axis_of(i + 1));",
    ),
    Mutation(
        "interleaved axis order taken for contiguous", "both", "kernels/mrope.cuh",
        "if (is_interleaved) return",
        "if (is_interleaved && size[0] == 0) return",
    ),
    Mutation(
        "axis beyond its interleaved section", "both", "kernels/mrope.cuh",
        "return i < kNumAxes * size[i % kNumAxes] ? i % kNumAxes : 0;",
        "return i % kNumAxes;",
    ),
    Mutation(
        "first width on the axis of height", "both", "kernels/mrope.cuh",
        "i < size[0] + size[1] ? 1 : 2;",
        "i <= size[0] + size[1] ? 1 : 2;",
    ),
    Mutation(
        "first axis for all", "cpu", "kernels/slots.cuh",
        "load_index(pos_of_axis(p, axis), token);",
        "load_index(pos_of_axis(p, axis * 0), token);",
    ),
    Mutation(
        "first axis for all", "device", "kernels/row_indices.cuh",
        "pos_[axis] = {pos_of_axis<Index>(p, axis), row, is_inside};",
        "pos_[axis] = {p.pos, row, is_inside};",
    ),
    Mutation(
        "offs on the first axis alone", "cpu", "kernels/slots.cuh",
        "return p.has_offs ? saturated_sum",
        "return p.has_offs && axis == 0 ? saturated_sum",
    ),
    Mutation(
        "last axis not looked at for its range", "cpu", "kernels/slots.cuh",
        "axis < kMaxAxes && p.pos_axis_stride != 0",
        "axis < kMaxAxes - 1 && p.pos_axis_stride != 0",
    ),
    Mutation(
        "axis of the next frequency", "device", "kernels/rotate_slice.cuh",
        "axes_of_lo_ = p.axes.from(kIsNeox ? lo : lo / 2);",
        "axes_of_lo_ = p.axes.from(kIsNeox ? lo : lo / 2) >> FrequencyAxes::kBits;",
    ),
    Mutation(
        "axis of the element, not of the pair", "device", "kernels/rotate_slice.cuh",
        "(j / kPerFrequency)",
        "j",
    ),
    Mutation(
        "axis of width for height", "device", "kernels/row_indices.cuh",
        "lowest == 1 ? value[1] : value[kMaxAxes - 1];",
        "lowest == 1 ? value[kMaxAxes - 1] : value[1];",
    ),
    # --- forms of calls
    Mutation(
        "offsets of usual calls ignored", "device", "kernels/call_form.cuh",
        "return !kHasPlainOptions<Params> && p.has_offs;",
        "return !kHasUsualOptions<Params> && p.has_offs;",
    ),
    Mutation(
        "window of usual calls ignored", "device", "kernels/call_form.cuh",
        "return !kHasPlainOptions<Params> && p.has_swa;",
        "return !kHasUsualOptions<Params> && p.has_swa;",
    ),
    Mutation(
        "usual calls rotate whole heads", "device", "kernels/rope_cache.cuh",
        "if constexpr (kIsRotatedWhole<Params>) return slice_of_whole_head<kVec>(p.head_size, true, slice);",
        "if constexpr (kHasUsualOptions<Params>) return slice_of_whole_head<kVec>(p.head_size, true, slice);",
    ),
    # --- fp8 queries
    Mutation(
        "q_scale of the query head", "cpu", "cache_ops/cpu_rows.cpp",
        "h / (p_.num_q_heads / p_.num_kv_heads);",
        "h % p_.num_kv_heads;",
    ),
    Mutation(
        "q_scale of the query head", "device", "kernels/query_output.cuh",
        "quotient(static_cast<uint32_t>(head))",
        "quotient(static_cast<uint32_t>(head % p.num_kv_heads))",
    ),
    Mutation(
        "q_scale ignored", "cpu", "cache_ops/cpu_rows.cpp",
        "scale(p_.q_scale, kv_head,",
        "scale(ScaleArray{}, kv_head,",
    ),
    Mutation(
        "q_scale ignored", "device", "kernels/query_output.cuh",
        "if (p.q_scale.data == nullptr) return 1.0f;",
        "if (p.q_scale.data == nullptr || p.q_out_dtype == DType::fp8_e4m3) return 1.0f;",
    ),
    Mutation(
        "q_scale of the first of a thread's heads", "device", "kernels/query_output.cuh",
        "scale_ = query_scale(p_, plan_, head);",
        "if (p_.num_q_heads == 1) scale_ = query_scale(p_, plan_, head);",
    ),
    Mutation(
        "q_scale of K", "cpu", "cache_ops/cpu_rows.cpp",
        "scale(p_.q_scale, kv_head,",
        "scale(p_.k_scale, kv_head,",
    ),
    Mutation(
        "rounded to dtype on the way to fp8", "cpu", "cache_ops/cpu_rows.cpp",
        "if (!p_.match_unfused) return",
        "if (!p_.match_unfused && !is_fp8(p_.cache_dtype)) return",
    ),
    Mutation(
        "other fp8 of queries", "device", "kernels/query_output.cuh",
        "if (p_.q_out_dtype == DType::fp8_e4m3) {",
        "if (p_.q_out_dtype != DType::fp8_e4m3) {",
    ),
    # --- positions and slots
    Mutation(
        "position of the neighbour", "cpu", "kernels/slots.cuh",
        "const int64_t pos = load_index(pos_of_axis(p, axis), token);",
        "const int64_t pos = load_index(pos_of_axis(p, axis), token > 0 ? token - 1 : token);",
    ),
    Mutation(
        "offs ignored", "cpu", "kernels/slots.cuh",
        "return p.has_offs ?",
        "return p.has_offs && !p.has_cache ?",
    ),
    Mutation(
        "offs ignored", "device", "kernels/row_indices.cuh",
        "offs_.value(p.offs.is_int64));",
        "int64_t{0});",
    ),
    Mutation(
        "window table skipped for fp8", "cpu", "kernels/slots.cuh",
        "  if (!p.has_swa)\n",
        "  if (!p.has_swa || p.cache_dtype == DType::fp8_e4m3)\n",
    ),
    Mutation(
        "window table skipped for fp8", "device", "kernels/row_indices.cuh",
        "if (!has_window(p)) return asked_for;",
        "if (!has_window(p) || p.cache_dtype == DType::fp8_e4m3) return asked_for;",
    ),
    Mutation(
        "negative slot not tested behind the window", "cpu", "kernels/slots.cuh",
        "if (window_slot < 0) return {SlotState::padding, window_slot};",
        "if (window_slot < -1) return {SlotState::padding, window_slot};",
    ),
    Mutation(
        "slot modulo by the wrong size", "both", "kernels/slots.cuh",
        "return {block, slot - block * block_size.divisor};",
        "return {block, slot % (block_size.divisor > 1 ? block_size.divisor - 1 : 1)};",
    ),
    Mutation(
        "index that is not read taken for 2^32 - 1", "device", "kernels/row_indices.cuh",
        "kIsWide ? 0xffffffffu : 0u",
        "0u",
    ),
    Mutation(
        "position of the neighbour", "device", "kernels/row_indices.cuh",
        "return {pos.is_below(p.cos_sin.num_rows), pos.value()};",
        "return {pos.is_below(p.cos_sin.num_rows), pos.value() ^ 1};",
    ),
    Mutation(
        "first of two rows with one slot kept", "device", "kernels/last_of_slot.cuh",
        "return is_asked_for && slot.is_valid &&",
        "return is_asked_for && p.num_slots == 0 &&",
    ),
    Mutation(
        "next row not looked at for the same slot", "device", "kernels/last_of_slot.cuh",
        "first(thread + 1), step",
        "first(thread + 2), step",
    ),
    Mutation(
        "first of two rows of a tile with one slot kept", "device", "kernels/value_tile.cuh",
        "    places[thread] = -1;\n",
        "    places[thread] += 0;\n",
    ),
    Mutation(
        "half of the later rows not looked at for a tile", "device", "kernels/value_tile.cuh",
        "const int num_before = later.distance(j) - token;",
        "const int num_before = later.first - j * later.step - token;",
    ),
    Mutation(
        "run of slots stored where it is not aligned", "device", "kernels/value_tile.cuh",
        "if (is_run && group.places[0] % kTokens == 0) {",
        "if (is_run) {",
    ),
    Mutation(
        "offset in the block not split for shuffled V", "both", "kernels/cache_layout.h",
        "product(inner, offset_inner_stride);",
        "product(inner & ~Index{1}, offset_inner_stride);",
    ),
    # --- rows
    Mutation(
        "elements that pass through taken from the rotated ones", "device", "kernels/slice_dims.cuh",
        "const int lo = (is_rotated ? i : rotated + i) * kVec;",
        "const int lo = i * kVec;",
    ),
    Mutation(
        "head stride for token stride", "cpu", "cache_ops/cpu_rows.cpp",
        "token * rows.token_stride + head * rows.head_stride;",
        "token * rows.head_stride + head * rows.head_stride;",
    ),
    Mutation(
        "head stride for token stride", "device", "kernels/head_slice.cuh",
        "product(token, rows.token_stride) +",
        "product(token, rows.head_stride) +",
    ),
    Mutation(
        "KV-only rows rotated", "cpu", "cache_ops/cpu_rows.cpp",
        "if (row >= p_.num_tokens)",
        "if (row >= p_.num_tokens && p_.k_out.data == nullptr)",
    ),
    Mutation(
        "KV-only rows taken for padding", "device", "kernels/call_form.cuh",
        "(p.has_cache && row < p.slot_mapping.size);",
        "(p.has_cache && row < p.slot_mapping.size && row < p.num_tokens);",
    ),
    Mutation(
        "last dim of values that lie apart dropped", "device", "kernels/value_slice.cuh",
        "if (dim < p_.v_head_size) {",
        "if (dim < p_.v_head_size - 1) {",
    ),
    Mutation(
        "only the first of a thread's heads served", "device", "kernels/rope_cache.cuh",
        "    x.load(from);\n  }\n",
        "    return;\n  }\n",
    ),
    Mutation(
        "V rotated too", "cpu", "cache_ops/cpu_rows.cpp",
        "[&](auto* to) { convert(x, p_.v_head_size, scale, to); });",
        "[&](auto* to) {\n"
        "      Head<T> head(x, p_.v_head_size);\n"
        "      if (row < p_.num_tokens && p_.v_head_size == p_.head_size) rotate_head(p_, angles_, head);\n"
        "      convert_head(head, scale, to);\n"
        "    });",
    ),
    # --- scales and conversions
    Mutation(
        "K not rounded under match_unfused", "cpu", "cache_ops/cpu_rows.cpp",
        "if (!p_.match_unfused) return",
        "if (!p_.match_unfused || slot >= 0) return",
    ),
    Mutation(
        "K not rounded under match_unfused", "device", "kernels/rope_cache.cuh",
        "if (matches_unfused(p)) values = widen(x);",
        "if (matches_unfused(p) && p.num_slots == 0) values = widen(x);",
    ),
    Mutation(
        "reciprocal under match_unfused", "both", "kernels/quantize.cuh",
        "return divide ? x / value : x * reciprocal;",
        "return x * reciprocal;",
    ),
    Mutation(
        "scale of V for K", "cpu", "cache_ops/cpu_rows.cpp",
        "scale(p_.k_scale, h,",
        "scale(p_.v_scale, h,",
    ),
    Mutation(
        "scale of V for K", "device", "kernels/rope_cache.cuh",
        "scale_of_head<T, CacheT>(p, p.k_scale, head)",
        "scale_of_head<T, CacheT>(p, p.v_scale, head)",
    ),
    Mutation(
        "scale instead of its reciprocal", "both", "kernels/quantize.cuh",
        "reciprocal(1.0f / value)",
        "reciprocal(value)",
    ),
    Mutation(
        "bf16 by truncation", "cpu", "kernels/quantize.cuh",
        "(bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;",
        "bits >> 16;",
    ),
    Mutation(
        "bf16 by truncation", "gpu", "kernels/quantize.cuh",
        "__float2bfloat16_rn(value)",
        "__float2bfloat16_rz(value)",
    ),
    Mutation(
        "saturation missing", "cpu", "kernels/minifloat.h",
        "code = code < kLargest ? code : kLargest;",
        "code = code < kLargest || kLargest != 0x7eu ? code : kNan;",
    ),
    Mutation(
        "saturation missing", "gpu", "kernels/quantize.cuh",
        "__NV_SATFINITE, __NV_E4M3",
        "__NV_NOSAT, __NV_E4M3",
    ),
    Mutation(
        "ties of fp8 up, not to even", "cpu", "kernels/minifloat.h",
        "const uint32_t is_odd = (magnitude >> kDroppedBits) & 1u;",
        "const uint32_t is_odd = 1u;",
    ),
]  # fmt: skip
