// The values of a table of cosines and sines. What the operation and the oracle are given is the same table,
// so it need not be any model's to the bit; it has the widths, the range and the scaling that models use.
#pragma once

#include <vector>

#include "runner/case_spec.h"

namespace kvrope::regress {

// (rows, spec.table_width()) values before they are rounded to the table's dtype.
std::vector<double> make_rope_table(const CaseSpec& spec, int64_t rows);

}  // namespace kvrope::regress
