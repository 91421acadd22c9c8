// The bytes that a call must move, whoever moves them.
#pragma once

#include <cstdint>

#include "runner/case_spec.h"
#include "runner/row_plan.h"

namespace kvrope::regress {

struct CallBytes {
  int64_t rows_read = 0;     // q, k, v
  int64_t rows_written = 0;  // outputs and cached rows
  int64_t indices = 0;       // positions, slots, window table entries and the table rows they name, each
                             // once, and the weights of norms

  int64_t rows() const { return rows_read + rows_written; }
  int64_t all() const { return rows() + indices; }
};

// Scales (a few bytes) are left out. In place, what is neither rotated nor normed need not be written.
CallBytes call_bytes(const CaseSpec& spec, const RowPlan& plan);

// Writes of a part of a 32-byte sector of the values' cache, one for rows that follow each other into one
// sector: they bound what scattered slots of the x-split layout can reach. 0 for other layouts.
int64_t partial_value_sectors(const CaseSpec& spec, const RowPlan& plan);

// Of its rows alone, known before anything is planned.
double estimated_bytes(const CaseSpec& spec);

}  // namespace kvrope::regress
