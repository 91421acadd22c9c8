#include "runner/call_flops.h"

namespace kvrope::regress {

int64_t call_flops(const CaseSpec& spec) {
  int64_t pairs = spec.tokens() * (spec.q_heads + spec.kv_heads) * (spec.rotated_dims() / 2);
  int64_t cached_rows = spec.slots_length() * spec.kv_heads;
  int64_t scaled = 0;
  if (spec.apply_scale && spec.k_scale) scaled += cached_rows * spec.head_dim;
  if (spec.q_scale) scaled += spec.tokens() * spec.q_heads * spec.head_dim;
  if (spec.apply_scale && spec.v_scale) scaled += cached_rows * spec.value_dim();
  // Of each element of a head that is normed: its square, the sum, two products.
  int64_t normed_heads = (spec.norms_q() ? spec.q_heads : 0) + (spec.norms_k() ? spec.kv_heads : 0);
  return 6 * pairs + 4 * spec.tokens() * normed_heads * spec.head_dim + scaled;
}

}  // namespace kvrope::regress
