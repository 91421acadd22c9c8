// Which instance of the kernel serves a call.
#pragma once

#include "call_form.cuh"
#include "compact_params.h"

namespace kvrope {

// Calls `use` with the parameters as the instance of a call's form takes them. Vectors of 8 and 16 bytes,
// those of aligned calls, have instances for plain calls, in 16 bits those of 16 bytes for usual calls, and
// in the style of newer models both for the two kinds of extended calls.
template <typename T, int kVec, bool kIsNeox, typename Use>
auto with_params_of_form(const RopeCacheParams& p, CallForm form, const Use& use) {
  if constexpr (kVec == 1) {
    return use(p);
  } else {
    const CompactParams compact = make_compact(p);
    if constexpr (kVec * sizeof(T) >= kShortVectorBytes) {
      if (form == CallForm::plain) return use(PlainParams{compact});
      if constexpr (kIsNeox && sizeof(T) == 2) {
        if (form == CallForm::extended) return use(ExtendedParams{compact});
        if (form == CallForm::extended_partial) return use(ExtendedPartialParams{compact});
      }
    }
    if constexpr (kVec * sizeof(T) == kLongVectorBytes && sizeof(T) == 2) {
      if (form == CallForm::usual) return use(UsualParams{compact});
    }
    return use(compact);
  }
}

}  // namespace kvrope
