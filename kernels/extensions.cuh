// What newer models do to a head on its way: RMSNorm, positions on three axes, queries in fp8. Code is
// compiled for calls that certainly have an extension, certainly have not, or may: a launch of a microsecond
// notices each instruction that asks, and long launches notice the registers.
#pragma once

#include "plain_call.cuh"

namespace kvrope {

enum class Presence { never, always, maybe };

template <Presence kPresence>
using PresenceOf = std::integral_constant<Presence, kPresence>;

template <Presence kPresence>
__device__ __forceinline__ bool is_present(bool is_asked_for) {
  if constexpr (kPresence == Presence::maybe) return is_asked_for;
  return kPresence == Presence::always;
}

// On how many axes a token may have positions.
template <Presence kAxes>
constexpr int kNumAxesOf = kAxes == Presence::never ? 1 : kNumAxes;

template <Presence kAxes, typename Params>
__device__ __forceinline__ bool has_axes(const Params& p) {
  return is_present<kAxes>(p.pos_axis_stride != 0);
}

template <Presence kFp8, typename Params>
__device__ __forceinline__ bool has_fp8_queries(const Params& p) {
  return is_present<kFp8>(is_fp8(p.q_out_dtype));
}

// What code that serves all calls of these parameters must take into account.
template <typename Params>
constexpr Presence kMaybeExtended = kIsPlain<Params> ? Presence::never : Presence::maybe;

// Calls serve_rows with the presence of a norm, of axes, and of anything else. Extended calls have code for
// each combination of the first two. Calls that are not of the plain form have code that knows of extensions
// and code that does not and has the registers for itself; those with long vectors have no registers for
// extensions (launch_plan.cpp gives them short ones).
template <typename Params, bool kHasShortVectors, typename Rows>
__device__ __forceinline__ void with_extensions(bool is_normed, bool has_axes, bool has_more,
                                                const Rows& serve_rows) {
  constexpr PresenceOf<Presence::never> never;
  constexpr PresenceOf<Presence::always> always;
  constexpr PresenceOf<Presence::maybe> maybe;
  if constexpr (kIsPlain<Params>) {
    serve_rows(never, never, never);
  } else if constexpr (kHasPlainForm<Params>) {
    if (is_normed) {
      has_axes ? serve_rows(always, always, maybe) : serve_rows(always, never, maybe);
    } else {
      has_axes ? serve_rows(never, always, maybe) : serve_rows(never, never, maybe);
    }
  } else if constexpr (kHasShortVectors) {
    is_normed || has_axes || has_more ? serve_rows(maybe, maybe, maybe) : serve_rows(never, never, never);
  } else {
    serve_rows(never, never, never);
  }
}

}  // namespace kvrope
