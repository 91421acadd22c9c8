// Compiled more than once, each time into the namespace KVROPE_CPU_TARGET; see CMakeLists.txt. No inline
// function of the standard library may be used here: the linker would keep any one of the copies.
#include <cmath>

#include "cache_layout.h"
#include "quantize.cuh"
#include "rms_norm.cuh"
#include "rotate.cuh"
#include "slots.cuh"

namespace kvrope::KVROPE_CPU_TARGET {
namespace {

constexpr int kMaxHeadSize = 512;

// One head on its way: its bits as they came or as they will be stored, and its values before that rounding.
template <typename T>
struct Head {
  T stored[kMaxHeadSize];
  float values[kMaxHeadSize];
};

// Cosine and sine of each rotated element of one token.
struct Angles {
  float cos[kMaxHeadSize], sin[kMaxHeadSize];
};

// The factor of each element of a normed head.
struct NormFactors {
  float q[kMaxHeadSize], k[kMaxHeadSize];
};

template <typename T>
T* head_of(const HeadRows& rows, int64_t token, int head) {
  return static_cast<T*>(rows.data) + token * rows.token_stride + head * rows.head_stride;
}

template <typename T>
void load_head(const T* from, int64_t stride, int size, Head<T>& head) {
  if (stride == 1) {
    for (int d = 0; d < size; ++d) head.stored[d] = from[d];
  } else {
    for (int d = 0; d < size; ++d) head.stored[d] = from[d * stride];
  }
  for (int d = 0; d < size; ++d) head.values[d] = to_float(head.stored[d]);
}

template <typename T>
void store_head(const T* from, int64_t stride, int size, T* to) {
  if (stride == 1) {
    for (int d = 0; d < size; ++d) to[d] = from[d];
  } else {
    for (int d = 0; d < size; ++d) to[d * stride] = from[d];
  }
}

template <typename T>
void fill_head(T value, int64_t stride, int size, T* to) {
  for (int d = 0; d < size; ++d) to[d * stride] = value;
}

template <typename TableT>
void load_angles(const RopeCacheParams& p, int64_t token, Angles& angles) {
  const RotaryStyle style = {p.is_neox, p.cos_sin.is_full_width};
  const TableT* rows[kNumAxes];
  for (int axis = 0; axis < kNumAxes; ++axis) {
    const int64_t position = effective_position(p, token, axis);
    rows[axis] = static_cast<const TableT*>(p.cos_sin.data) + position * p.cos_sin.row_stride;
  }
  const int64_t sine_offset = style.sine_offset(p.rotary_dim);
  for (int pair = 0; pair < p.rotary_dim / 2; ++pair) {
    const TableT* row = rows[p.axes.of(pair)];
    const auto load = [&](int j) {
      const int64_t column = style.cosine_column(j, p.rotary_dim);
      angles.cos[j] = to_float(row[column * p.cos_sin.column_stride]);
      angles.sin[j] = to_float(row[(column + sine_offset) * p.cos_sin.column_stride]);
    };
    load(style.first_of_pair(pair));
    load(style.second_of_pair(pair, p.rotary_dim));
  }
}

void load_angles(const RopeCacheParams& p, int64_t token, Angles& angles) {
  switch (p.cos_sin.dtype) {
    case DType::fp16:
      return load_angles<fp16>(p, token, angles);
    case DType::bf16:
      return load_angles<bf16>(p, token, angles);
    default:
      return load_angles<float>(p, token, angles);
  }
}

template <typename WeightT>
void load_weights(const RopeCacheParams& p, const NormWeight& weight, float* factors) {
  const WeightT* from = static_cast<const WeightT*>(weight.data);
  for (int d = 0; d < p.head_size; ++d) {
    factors[d] = norm_weight(to_float(from[d * weight.stride]), p.weight_plus_one);
  }
}

template <typename T>
void load_weights_of(const RopeCacheParams& p, const NormWeight& weight, float* factors) {
  if (weight.data == nullptr) return;
  weight.is_fp32 ? load_weights<float>(p, weight, factors) : load_weights<T>(p, weight, factors);
}

template <typename T>
void norm_head(const RopeCacheParams& p, const float* factors, Head<T>& head) {
  float sums[kMaxHeadSize / 2];
  int count = p.head_size / 2;
  for (int i = 0; i < count; ++i) sums[i] = sum_of_squares(head.values[i], head.values[i + count]);
  for (; count > 1; count = (count + 1) / 2) {
    if (count % 2 != 0) sums[count] = 0.0f;
    for (int i = 0; 2 * i < count; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  }
  const float factor = norm_factor(sums[0], p.inverse_head_size, p.norm_eps);
  for (int d = 0; d < p.head_size; ++d) {
    head.values[d] = normed(head.values[d], factor, factors[d]);
    head.stored[d] = from_float<T>(head.values[d]);
  }
}

template <typename T>
void rotate_head(const RopeCacheParams& p, const Angles& angles, Head<T>& head) {
  const RotaryStyle style = {p.is_neox, p.cos_sin.is_full_width};
  float* x = head.values + p.rotary_dim_offset;
  for (int pair = 0; pair < p.rotary_dim / 2; ++pair) {
    const int i = style.first_of_pair(pair), j = style.second_of_pair(pair, p.rotary_dim);
    const float a = x[i], b = x[j];
    x[i] = rotate_first(a, b, angles.cos[i], angles.sin[i]);
    x[j] = rotate_second(a, b, angles.cos[j], angles.sin[j]);
  }
  T* stored = head.stored + p.rotary_dim_offset;
  for (int j = 0; j < p.rotary_dim; ++j) stored[j] = from_float<T>(x[j]);
}

// As another type, or scaled. Unscaled heads of their own type keep their bits.
template <typename T, typename ToT>
void convert_head(const ScaleArray& scales, int head, bool divide, int size, const Head<T>& x, ToT* to) {
  if (scales.data != nullptr) {
    const Scale scale(scales.data[head * scales.head_stride], divide);
    for (int d = 0; d < size; ++d) to[d] = from_float<ToT>(scale.apply(x.values[d]));
  } else if constexpr (DTypeOf<T>::value == DTypeOf<ToT>::value) {
    for (int d = 0; d < size; ++d) to[d] = x.stored[d];
  } else {
    for (int d = 0; d < size; ++d) to[d] = from_float<ToT>(x.values[d]);
  }
}

template <typename T, typename OutT>
void store_query(const RopeCacheParams& p, int64_t token, int head, const Head<T>& x) {
  OutT stored[kMaxHeadSize];
  const int kv_head = p.num_kv_heads == 0 ? 0 : head / (p.num_q_heads / p.num_kv_heads);
  convert_head(p.q_scale, kv_head, false, p.head_size, x, stored);
  store_head(stored, p.q_out.dim_stride, p.head_size, head_of<OutT>(p.q_out, token, head));
}

template <typename T>
void store_query_as_asked(const RopeCacheParams& p, int64_t token, int head, const Head<T>& x) {
  switch (p.q_out_dtype) {
    case DType::fp8_e4m3:
      return store_query<T, fp8_e4m3>(p, token, head, x);
    case DType::fp8_e5m2:
      return store_query<T, fp8_e5m2>(p, token, head, x);
    default:
      return store_query<T, T>(p, token, head, x);
  }
}

// Zero is one in every type.
template <typename T>
void clear_query(const RopeCacheParams& p, int64_t token, int head) {
  if (is_fp8(p.q_out_dtype)) {
    fill_head(uint8_t{0}, p.q_out.dim_stride, p.head_size, head_of<uint8_t>(p.q_out, token, head));
  } else {
    fill_head(from_float<T>(0.0f), p.q_out.dim_stride, p.head_size, head_of<T>(p.q_out, token, head));
  }
}

template <typename T, typename CacheT>
void cache_head(const PagedCache& cache, const ScaleArray& scales, bool divide,
                const SlotInBlock<int64_t>& at, int head, int size, const Head<T>& x) {
  const CacheLayout& layout = cache.layout;
  CacheT* row = static_cast<CacheT*>(cache.data) + layout.row_offset(at.block, at.offset, head);
  CacheT stored[kMaxHeadSize];
  convert_head(scales, head, divide, size, x, stored);
  if (layout.dim_split_log2 == 0) {
    store_head(stored, layout.dim_outer_stride, size, row);
  } else {
    for (int d = 0; d < size; ++d) row[layout.dim_offset(d)] = stored[d];
  }
}

template <typename T, typename CacheT>
void serve_token(const RopeCacheParams& p, const NormFactors& factors, int64_t token, int64_t slot,
                 Head<T>& head, Angles& angles) {
  const bool is_rotated = token < p.num_tokens;
  const bool has_position = is_rotated && is_in_table(p, deciding_position<kNumAxes>(p, token));
  if (has_position) load_angles(p, token, angles);
  const T zero = from_float<T>(0.0f);

  for (int h = 0; is_rotated && h < p.num_q_heads; ++h) {
    if (has_position) {
      load_head(head_of<const T>(p.q, token, h), p.q.dim_stride, p.head_size, head);
      if (p.q_weight.data != nullptr) norm_head(p, factors.q, head);
      rotate_head(p, angles, head);
      store_query_as_asked(p, token, h, head);
    } else {
      clear_query<T>(p, token, h);
    }
    if (p.zeros_out.data != nullptr) {
      fill_head(zero, p.zeros_out.dim_stride, p.head_size, head_of<T>(p.zeros_out, token, h));
    }
  }

  const SlotInBlock<int64_t> at = slot >= 0 ? locate(slot, p.block_size) : SlotInBlock<int64_t>{};
  for (int h = 0; h < p.num_kv_heads; ++h) {
    T* k_out = p.k_out.data != nullptr ? head_of<T>(p.k_out, token, h) : nullptr;
    if (is_rotated && !has_position) {
      if (k_out != nullptr) fill_head(zero, p.k_out.dim_stride, p.head_size, k_out);
      continue;
    }
    load_head(head_of<const T>(p.k, token, h), p.k.dim_stride, p.head_size, head);
    if (is_rotated && p.k_weight.data != nullptr) norm_head(p, factors.k, head);
    if (is_rotated) rotate_head(p, angles, head);
    if (k_out != nullptr) store_head(head.stored, p.k_out.dim_stride, p.head_size, k_out);
    if (slot < 0) continue;
    if (p.match_unfused) {
      for (int d = 0; d < p.head_size; ++d) head.values[d] = to_float(head.stored[d]);
    }
    cache_head<T, CacheT>(p.key_cache, p.k_scale, p.match_unfused, at, h, p.head_size, head);
    load_head(head_of<const T>(p.v, token, h), p.v.dim_stride, p.v_head_size, head);
    cache_head<T, CacheT>(p.value_cache, p.v_scale, p.match_unfused, at, h, p.v_head_size, head);
  }
}

template <typename T, typename CacheT>
void serve(const RopeCacheParams& p, int64_t first, int64_t last, const int64_t* slots) {
  Head<T> head;
  Angles angles;
  NormFactors factors;
  load_weights_of<T>(p, p.q_weight, factors.q);
  load_weights_of<T>(p, p.k_weight, factors.k);
  for (int64_t token = first; token < last; ++token)
    serve_token<T, CacheT>(p, factors, token, slots[token], head, angles);
}

template <typename T>
void serve_dtype(const RopeCacheParams& p, int64_t first, int64_t last, const int64_t* slots) {
  switch (p.has_cache ? p.cache_dtype : p.dtype) {
    case DType::fp8_e4m3:
      return serve<T, fp8_e4m3>(p, first, last, slots);
    case DType::fp8_e5m2:
      return serve<T, fp8_e5m2>(p, first, last, slots);
    default:
      return serve<T, T>(p, first, last, slots);
  }
}

}  // namespace

void serve_tokens(const RopeCacheParams& p, int64_t first, int64_t last, const int64_t* slots) {
  switch (p.dtype) {
    case DType::fp16:
      return serve_dtype<fp16>(p, first, last, slots);
    case DType::bf16:
      return serve_dtype<bf16>(p, first, last, slots);
    default:
      return serve_dtype<float>(p, first, last, slots);
  }
}

}  // namespace kvrope::KVROPE_CPU_TARGET
