// The numbers of a call, as the oracle sees them: plain arrays without strides, already rounded to their
// dtypes.
#pragma once

#include <optional>
#include <vector>

#include "runner/case_spec.h"
#include "runner/row_plan.h"

namespace kvrope::regress {

struct CallData {
  RowPlan plan;
  std::vector<float> q;                                         // (T, QH, D)
  std::vector<float> k, v;                                      // (Tk, KH, D), (Tk, KH, Dv)
  std::vector<float> cos_sin;                                   // (P, W)
  std::vector<float> q_weight, k_weight;                        // (D,), or none
  std::optional<std::vector<float>> k_scale, v_scale, q_scale;  // one, or one a head
};

CallData make_call_data(const CaseSpec& spec);

}  // namespace kvrope::regress
