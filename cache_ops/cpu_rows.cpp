// Compiled more than once, each time into the namespace KVROPE_CPU_TARGET; see CMakeLists.txt. Of the
// standard library only functions that become an instruction or a call may be used here (fma, sqrt, memmove):
// of others the linker would keep any one of the copies.
#include "cpu_head.h"
#include "slots.cuh"

namespace kvrope::KVROPE_CPU_TARGET {
namespace {

template <typename T>
T* head_of(const HeadRows& rows, int64_t token, int head) {
  return static_cast<T*>(rows.data) + token * rows.token_stride + head * rows.head_stride;
}

// The elements of a head side by side: where they stand, or in a copy.
template <typename T>
const T* side_by_side(const HeadRows& rows, int64_t token, int head, int size, T* copy) {
  const T* from = head_of<const T>(rows, token, head);
  if (rows.dim_stride == 1) return from;
  for (int d = 0; d < size; ++d) copy[d] = from[d * rows.dim_stride];
  return copy;
}

// `write` puts the elements side by side: where they belong, or in a copy whose elements then go there.
template <typename T, typename Write>
void store_head(T* to, int64_t stride, int size, const Write& write) {
  if (stride == 1) return write(to);
  T copy[kMaxHeadSize];
  write(copy);
  for (int d = 0; d < size; ++d) to[d * stride] = copy[d];
}

template <typename CacheT, typename Write>
void store_split_head(CacheT* to, const CacheLayout& layout, int size, const Write& write) {
  CacheT copy[kMaxHeadSize];
  write(copy);
  const int group = 1 << layout.dim_split_log2;
  for (int first = 0; first < size; first += group) {
    CacheT* to_group = to + layout.dim_offset(first);
    for (int d = 0; d < group; ++d) to_group[d * layout.dim_inner_stride] = copy[first + d];
  }
}

template <typename CacheT, typename Write>
void store_cache_row(const PagedCache& cache, const SlotInBlock<int64_t>& at, int head, int size,
                     const Write& write) {
  const CacheLayout& layout = cache.layout;
  CacheT* to = static_cast<CacheT*>(cache.data) + layout.row_offset(at.block, at.offset, head);
  if (layout.dim_split_log2 == 0) return store_head(to, layout.dim_outer_stride, size, write);
  store_split_head(to, layout, size, write);
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
    const auto load = [&](int j, float& cos, float& sin) {
      const int64_t column = style.cosine_column(j, p.rotary_dim);
      cos = to_float(row[column * p.cos_sin.column_stride]);
      sin = to_float(row[(column + sine_offset) * p.cos_sin.column_stride]);
    };
    load(style.first_of_pair(pair), angles.cos_of_first[pair], angles.sin_of_first[pair]);
    load(style.second_of_pair(pair, p.rotary_dim), angles.cos_of_second[pair], angles.sin_of_second[pair]);
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
void load_weights(const RopeCacheParams& p, const NormWeight& weight, NormFactors& factors) {
  const WeightT* from = static_cast<const WeightT*>(weight.data);
  for (int d = 0; d < p.head_size; ++d) {
    factors.of[d] = norm_weight(to_float(from[d * weight.stride]), p.weight_plus_one);
  }
}

template <typename T>
void load_weights_of(const RopeCacheParams& p, const NormWeight& weight, NormFactors& factors) {
  if (weight.data == nullptr) return;
  weight.is_fp32 ? load_weights<float>(p, weight, factors) : load_weights<T>(p, weight, factors);
}

template <typename T>
class RowServer {
 public:
  explicit RowServer(const RopeCacheParams& p) : p_(p) {
    load_weights_of<T>(p, p.q_weight, q_factors_);
    load_weights_of<T>(p, p.k_weight, k_factors_);
  }

  // slot: -1 where the row is not cached.
  void serve(int64_t row, int64_t slot) {
    const bool is_token = row < p_.num_tokens;
    if (is_token) clear_zeros_out(row);
    if (is_token && !is_in_table(p_, deciding_position<kNumAxes>(p_, row))) return clear_outputs(row);
    if (is_token) load_angles(p_, row, angles_);
    for (int h = 0; is_token && h < p_.num_q_heads; ++h) serve_query(row, h);
    for (int h = 0; h < p_.num_kv_heads; ++h) serve_key(row, h, slot);
    for (int h = 0; slot >= 0 && h < p_.num_kv_heads; ++h) serve_value(row, h, slot);
  }

 private:
  // Calls `use` with a head after its norm, which is the head itself where there is none.
  template <typename Use>
  void with_normed(const T* x, const NormWeight& weight, const NormFactors& factors, const Use& use) {
    if (weight.data == nullptr) return use(x);
    alignas(kCacheLine) Unrounded values[kMaxHeadSize];
    norm_head(p_, x, factors, values);
    use(values);
  }

  void serve_query(int64_t row, int h) {
    T copy[kMaxHeadSize];
    const T* x = side_by_side(p_.q, row, h, p_.head_size, copy);
    with_normed(x, p_.q_weight, q_factors_, [&](const auto* head) { rotate_query(head, row, h); });
  }

  template <typename FromT>
  void rotate_query(const FromT* x, int64_t row, int h) {
    Head<FromT> head(x, p_.head_size);
    rotate_head(p_, angles_, head);
    switch (p_.q_out_dtype) {
      case DType::fp8_e4m3:
        return store_query<fp8_e4m3>(head, row, h);
      case DType::fp8_e5m2:
        return store_query<fp8_e5m2>(head, row, h);
      default:
        return store_query<T>(head, row, h);
    }
  }

  template <typename OutT, typename FromT>
  void store_query(const Head<FromT>& head, int64_t row, int h) {
    const int kv_head = p_.num_kv_heads == 0 ? 0 : h / (p_.num_q_heads / p_.num_kv_heads);
    const HeadScale scale(p_.q_scale, kv_head, false);
    store_head(head_of<OutT>(p_.q_out, row, h), p_.q_out.dim_stride, p_.head_size,
               [&](OutT* to) { convert_head(head, scale, to); });
  }

  void serve_key(int64_t row, int h, int64_t slot) {
    T copy[kMaxHeadSize];
    const T* x = side_by_side(p_.k, row, h, p_.head_size, copy);
    if (row >= p_.num_tokens) return store_key(Head<T>(x, p_.head_size), row, h, slot);
    with_normed(x, p_.k_weight, k_factors_, [&](const auto* head) { rotate_key(head, row, h, slot); });
  }

  template <typename FromT>
  void rotate_key(const FromT* x, int64_t row, int h, int64_t slot) {
    Head<FromT> head(x, p_.head_size);
    rotate_head(p_, angles_, head);
    if (!p_.match_unfused) return store_key(head, row, h, slot);
    T rounded[kMaxHeadSize];
    convert_head(head, HeadScale(), rounded);
    store_key(Head<T>(rounded, p_.head_size), row, h, slot);
  }

  // The cache first: k_out may be where the head came from.
  template <typename FromT>
  void store_key(const Head<FromT>& head, int64_t row, int h, int64_t slot) {
    if (slot >= 0) {
      const HeadScale scale(p_.k_scale, h, p_.match_unfused);
      store_in_cache(p_.key_cache, slot, h, p_.head_size, [&](auto* to) { convert_head(head, scale, to); });
    }
    if (p_.k_out.data != nullptr) {
      store_head(head_of<T>(p_.k_out, row, h), p_.k_out.dim_stride, p_.head_size,
                 [&](T* to) { convert_head(head, HeadScale(), to); });
    }
  }

  void serve_value(int64_t row, int h, int64_t slot) {
    T copy[kMaxHeadSize];
    const T* x = side_by_side(p_.v, row, h, p_.v_head_size, copy);
    const HeadScale scale(p_.v_scale, h, p_.match_unfused);
    store_in_cache(p_.value_cache, slot, h, p_.v_head_size,
                   [&](auto* to) { convert(x, p_.v_head_size, scale, to); });
  }

  template <typename Write>
  void store_in_cache(const PagedCache& cache, int64_t slot, int h, int size, const Write& write) {
    switch (p_.cache_dtype) {
      case DType::fp8_e4m3:
        return store_cache_row<fp8_e4m3>(cache, locate(slot, p_.block_size), h, size, write);
      case DType::fp8_e5m2:
        return store_cache_row<fp8_e5m2>(cache, locate(slot, p_.block_size), h, size, write);
      default:
        return store_cache_row<T>(cache, locate(slot, p_.block_size), h, size, write);
    }
  }

  // Zero is one in every type.
  template <typename OutT>
  void clear(const HeadRows& rows, int64_t row, int num_heads) {
    for (int h = 0; h < num_heads; ++h) {
      OutT* to = head_of<OutT>(rows, row, h);
      for (int d = 0; d < p_.head_size; ++d) to[d * rows.dim_stride] = {};
    }
  }

  void clear_zeros_out(int64_t row) {
    if (p_.zeros_out.data != nullptr) clear<T>(p_.zeros_out, row, p_.num_q_heads);
  }

  // Of a token without a position.
  void clear_outputs(int64_t row) {
    is_fp8(p_.q_out_dtype) ? clear<uint8_t>(p_.q_out, row, p_.num_q_heads)
                           : clear<T>(p_.q_out, row, p_.num_q_heads);
    if (p_.k_out.data != nullptr) clear<T>(p_.k_out, row, p_.num_kv_heads);
  }

  const RopeCacheParams& p_;
  Angles angles_;
  NormFactors q_factors_, k_factors_;
};

template <typename T>
void serve(const RopeCacheParams& p, int64_t first, int64_t last, const int64_t* slots) {
  RowServer<T> server(p);
  for (int64_t row = first; row < last; ++row) server.serve(row, slots[row]);
}

}  // namespace

void serve_tokens(const RopeCacheParams& p, int64_t first, int64_t last, const int64_t* slots) {
  switch (p.dtype) {
    case DType::fp16:
      return serve<fp16>(p, first, last, slots);
    case DType::bf16:
      return serve<bf16>(p, first, last, slots);
    default:
      return serve<float>(p, first, last, slots);
  }
}

}  // namespace kvrope::KVROPE_CPU_TARGET
