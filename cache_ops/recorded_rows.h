// The patterns of a call's slots and positions, in the words of a case file.
#pragma once

#include "arguments.h"
#include "recorded_case.h"

namespace kvrope {

struct RecordedRows {
  Json pattern;  // names alone: what makes calls distinct
  Json positions, slots;
  int64_t num_blocks = 0;  // of the caches in the case; 0 leaves it to the runner
  int64_t table_rows = 0;
  bool has_bad_row = false;  // a slot or position out of range, which the CUDA kernel records as a fault
};

// `keeps_blocks`: the caches' strides hold for their number of blocks alone.
RecordedRows read_rows(const FusedArguments& args, int64_t num_blocks, int64_t block_size, bool keeps_blocks);
RecordedRows unknown_rows(const FusedArguments& args, int64_t num_blocks, int64_t block_size,
                          bool keeps_blocks);

}  // namespace kvrope
