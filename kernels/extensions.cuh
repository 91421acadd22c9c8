// What newer models do to a head on its way: RMSNorm, positions on three axes, queries in fp8. Code is
// compiled for calls that certainly have an extension, certainly have not, or may: a launch of a microsecond
// notices each instruction that asks, and long launches notice the registers.
#pragma once

#include "call_form.cuh"

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
constexpr Presence kMaybeExtended =
    kFormOf<Params> == CallForm::plain || kFormOf<Params> == CallForm::usual ? Presence::never
                                                                             : Presence::maybe;

// Calls `serve` with always or never for each extension.
template <typename Serve>
__device__ __forceinline__ void with_certainty(const Serve& serve) {
  serve();
}

template <typename Serve, typename... Flags>
__device__ __forceinline__ void with_certainty(const Serve& serve, bool is_asked_for, Flags... others) {
  if (is_asked_for) {
    with_certainty([&](auto... rest) { serve(PresenceOf<Presence::always>(), rest...); }, others...);
  } else {
    with_certainty([&](auto... rest) { serve(PresenceOf<Presence::never>(), rest...); }, others...);
  }
}

// Calls `serve` with the presence of each extension. Extended calls have code for each combination. General
// ones have code that knows of all extensions and code that knows of none and has the registers for itself;
// those with long vectors have no registers for extensions (launch_plan.cpp gives them short ones).
template <typename Params, bool kHasShortVectors, typename Serve, typename... Flags>
__device__ __forceinline__ void with_extensions(const Serve& serve, Flags... is_asked_for) {
  if constexpr (kIsExtended<Params>) {
    with_certainty(serve, is_asked_for...);
  } else {
    if constexpr (kHasShortVectors && kFormOf<Params> == CallForm::general) {
      if ((is_asked_for || ...)) {
        return serve((static_cast<void>(is_asked_for), PresenceOf<Presence::maybe>())...);
      }
    }
    serve((static_cast<void>(is_asked_for), PresenceOf<Presence::never>())...);
  }
}

}  // namespace kvrope
