// Which instance of the kernel serves a call.
#pragma once

#include "call_form.cuh"
#include "compact_params.h"

namespace kvrope {

// Calls `use` with the parameters as the instance of a call's form takes them.
template <typename T, int kVec, bool kIsNeox, typename Use>
auto with_params_of_form(const RopeCacheParams& p, CallForm form, const Use& use) {
  if constexpr (kVec == 1) {
    return use(p);
  } else {
    const CompactParams compact = make_compact(p);
    constexpr int kElementBytes = sizeof(T), kVectorBytes = kVec * kElementBytes;
    if constexpr (has_kernels(CallForm::plain, kVectorBytes, kElementBytes, kIsNeox)) {
      if (form == CallForm::plain) return use(PlainParams{compact});
    }
    if constexpr (has_kernels(CallForm::usual, kVectorBytes, kElementBytes, kIsNeox)) {
      if (form == CallForm::usual) return use(UsualParams{compact});
    }
    if constexpr (has_kernels(CallForm::extended, kVectorBytes, kElementBytes, kIsNeox)) {
      if (form == CallForm::extended) return use(ExtendedParams{compact});
      if (form == CallForm::extended_partial) return use(ExtendedPartialParams{compact});
    }
    return use(compact);
  }
}

}  // namespace kvrope
