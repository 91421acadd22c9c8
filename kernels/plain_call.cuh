// What a call may ask for beyond the usual. Kernels of plain calls (compact_params.h) know while they are
// compiled that nothing of it is asked for; their parameters are of a type of their own with the same
// contents. A launch of a microsecond spends most of its time fetching its instructions: plain calls need
// half as many. Extended calls have the sizes, rows and tables of plain ones, and what newer models do to a
// head on its way: RMSNorm, positions on three axes, queries in fp8.
#pragma once

#include <type_traits>

#include "rope_cache_params.h"

namespace kvrope {

struct PlainParams : CompactParams {};
struct ExtendedParams : CompactParams {};

template <typename Params>
constexpr bool kIsPlain = false;
template <>
inline constexpr bool kIsPlain<PlainParams> = true;

template <typename Params>
constexpr bool kHasPlainForm = kIsPlain<Params>;
template <>
inline constexpr bool kHasPlainForm<ExtendedParams> = true;

// Axes on which a token may have a position of its own.
template <typename Params>
constexpr int kMaxAxes = kIsPlain<Params> ? 1 : kNumAxes;

template <typename Params>
using IndexOf = decltype(Params::num_tokens);

template <typename Params>
__device__ __forceinline__ bool has_offs(const Params& p) {
  return !kHasPlainForm<Params> && p.has_offs;
}

template <typename Params>
__device__ __forceinline__ bool has_window(const Params& p) {
  return !kHasPlainForm<Params> && p.has_swa;
}

template <typename Params>
__device__ __forceinline__ bool has_zeros_out(const Params& p) {
  return !kHasPlainForm<Params> && p.zeros_out.data != nullptr;
}

template <typename Params>
__device__ __forceinline__ bool has_k_out(const Params& p) {
  return kHasPlainForm<Params> || p.k_out.data != nullptr;
}

// Without keys there are no values either: queries are rotated alone.
template <typename Params>
__device__ __forceinline__ bool has_keys(const Params& p) {
  return kHasPlainForm<Params> || p.num_kv_heads > 0;
}

template <typename Params>
__device__ __forceinline__ bool matches_unfused(const Params& p) {
  return !kHasPlainForm<Params> && p.match_unfused;
}

template <typename Params>
__device__ __forceinline__ bool has_full_width_table(const Params& p) {
  return !kHasPlainForm<Params> && p.cos_sin.is_full_width;
}

template <typename Params>
__device__ __forceinline__ DType table_dtype(const Params& p) {
  return kHasPlainForm<Params> ? DType::fp32 : p.cos_sin.dtype;
}

template <typename Params>
__device__ __forceinline__ int rotary_dim_offset(const Params& p) {
  return kHasPlainForm<Params> ? 0 : p.rotary_dim_offset;
}

template <typename Params>
__device__ __forceinline__ bool has_axes(const Params& p) {
  return !kIsPlain<Params> && p.pos_axis_stride != 0;
}

template <typename Params>
__device__ __forceinline__ bool has_fp8_queries(const Params& p) {
  return !kIsPlain<Params> && is_fp8(p.q_out_dtype);
}

template <typename Params>
__device__ __forceinline__ bool extends_queries(const Params& p) {
  return p.q_weight.data != nullptr || has_axes(p) || has_fp8_queries(p);
}

template <typename Params>
__device__ __forceinline__ bool extends_keys(const Params& p) {
  return p.k_weight.data != nullptr || has_axes(p);
}

// Rows are served by code that knows of extensions, or by code that does not and has the registers for
// itself: both are there for calls that are not of the plain form, but for those with long vectors, which
// have no registers for extensions (launch_plan.cpp gives them short ones).
template <typename Params, bool kHasShortVectors, typename Rows>
__device__ __forceinline__ void with_or_without_extensions(bool is_extended, const Rows& serve_rows) {
  if constexpr (kHasPlainForm<Params>) {
    serve_rows(std::bool_constant<!kIsPlain<Params>>());
  } else if (kHasShortVectors && is_extended) {
    serve_rows(std::bool_constant<kHasShortVectors>());
  } else {
    serve_rows(std::false_type());
  }
}

// Whether a row of k and v has a position and is rotated; the others, KV-only, are final already.
template <typename Params>
__device__ __forceinline__ bool is_token(const Params& p, IndexOf<Params> row) {
  return kHasPlainForm<Params> || row < p.num_tokens;
}

// Whether slot_mapping says anything of a row.
template <typename Params>
__device__ __forceinline__ bool has_slot(const Params& p, IndexOf<Params> row) {
  return kHasPlainForm<Params> || (p.has_cache && row < p.slot_mapping.size);
}

}  // namespace kvrope
