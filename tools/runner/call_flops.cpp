#include "runner/call_flops.h"

namespace kvrope::regress {

int64_t call_flops(const CaseSpec& spec) {
  int64_t pairs = spec.tokens() * (spec.q_heads + spec.kv_heads) * (spec.rotated_dims() / 2);
  int64_t cached_rows = spec.slots_length() * spec.kv_heads;
  int64_t scaled = 0;
  if (spec.apply_scale && spec.k_scale) scaled += cached_rows * spec.head_dim;
  if (spec.apply_scale && spec.v_scale) scaled += cached_rows * spec.value_dim();
  return 6 * pairs + scaled;
}

}  // namespace kvrope::regress
