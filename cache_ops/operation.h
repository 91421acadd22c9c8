// The fused operation and its two halves. A half is the fused call without the arguments that belong to the
// other half alone (undefined tensors, absent options): one checker, one set of parameters and one kernel
// serve all three.
#pragma once

namespace kvrope {

enum class Operation { fused, rope, reshape_and_cache };

constexpr const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::rope:
      return "rope";
    case Operation::reshape_and_cache:
      return "reshape_and_cache";
    default:
      return "fused_qk_rope_reshape_and_cache";
  }
}

constexpr bool rotates(Operation operation) {
  return operation != Operation::reshape_and_cache;
}

constexpr bool writes_cache(Operation operation) {
  return operation != Operation::rope;
}

}  // namespace kvrope
