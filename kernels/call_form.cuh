// What a call may ask for beyond the plainest. Kernels know while they are compiled what calls of their form
// (launch_plan.h) do not ask for; their parameters are of a type of their own with the same contents. A
// launch of a microsecond consists of few instructions, and in a long one the registers that an option takes
// are missed: plain calls need half as many instructions as general ones.
#pragma once

#include <type_traits>

#include "launch_plan.h"

namespace kvrope {

struct UsualParams : CompactParams {};
struct PlainParams : CompactParams {};
struct ExtendedParams : CompactParams {};
struct ExtendedPartialParams : CompactParams {};

template <typename Params>
constexpr CallForm kFormOf = CallForm::general;
template <>
inline constexpr CallForm kFormOf<UsualParams> = CallForm::usual;
template <>
inline constexpr CallForm kFormOf<PlainParams> = CallForm::plain;
template <>
inline constexpr CallForm kFormOf<ExtendedParams> = CallForm::extended;
template <>
inline constexpr CallForm kFormOf<ExtendedPartialParams> = CallForm::extended_partial;

// What is certain of calls with these parameters: extensions (extensions.cuh), usual options, heads rotated
// whole, plain options (call_options.h).
template <typename Params>
constexpr bool kIsExtended = is_extended(kFormOf<Params>);
template <typename Params>
constexpr bool kHasUsualOptions = kFormOf<Params> != CallForm::general;
template <typename Params>
constexpr bool kIsRotatedWhole = kFormOf<Params> == CallForm::plain || kFormOf<Params> == CallForm::extended;
template <typename Params>
constexpr bool kHasPlainOptions = kIsRotatedWhole<Params> || kIsExtended<Params>;

template <typename Params>
using IndexOf = decltype(Params::num_tokens);

template <typename Params>
__device__ __forceinline__ bool has_offs(const Params& p) {
  return !kHasPlainOptions<Params> && p.has_offs;
}

template <typename Params>
__device__ __forceinline__ bool has_window(const Params& p) {
  return !kHasPlainOptions<Params> && p.has_swa;
}

template <typename Params>
__device__ __forceinline__ bool has_zeros_out(const Params& p) {
  return !kHasPlainOptions<Params> && p.zeros_out.data != nullptr;
}

template <typename Params>
__device__ __forceinline__ bool has_k_out(const Params& p) {
  return kHasPlainOptions<Params> || p.k_out.data != nullptr;
}

// Without keys there are no values either: queries are rotated alone.
template <typename Params>
__device__ __forceinline__ bool has_keys(const Params& p) {
  return kHasUsualOptions<Params> || p.num_kv_heads > 0;
}

template <typename Params>
__device__ __forceinline__ bool matches_unfused(const Params& p) {
  return !kHasUsualOptions<Params> && p.match_unfused;
}

template <typename Params>
__device__ __forceinline__ bool has_full_width_table(const Params& p) {
  return !kHasUsualOptions<Params> && p.cos_sin.is_full_width;
}

template <typename Params>
__device__ __forceinline__ DType table_dtype(const Params& p) {
  return kHasPlainOptions<Params> ? DType::fp32 : p.cos_sin.dtype;
}

template <typename Params>
__device__ __forceinline__ int rotary_dim_offset(const Params& p) {
  return kHasPlainOptions<Params> ? 0 : p.rotary_dim_offset;
}

// Whether a row of k and v has a position and is rotated; the others, KV-only, are final already.
template <typename Params>
__device__ __forceinline__ bool is_token(const Params& p, IndexOf<Params> row) {
  return kHasUsualOptions<Params> || row < p.num_tokens;
}

// Whether slot_mapping says anything of a row.
template <typename Params>
__device__ __forceinline__ bool has_slot(const Params& p, IndexOf<Params> row) {
  return kHasUsualOptions<Params> || (p.has_cache && row < p.slot_mapping.size);
}

}  // namespace kvrope
