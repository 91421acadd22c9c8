// The numbers of one step as the scheduler hands them to the device, one row a token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine_step/scheduler.h"

namespace kvrope::engine {

struct StepRows {
  std::vector<Chunk> chunks;  // their rows stand one after the other; padding follows
  bool is_decode = false;     // no chunk has more than one token
  int64_t num_padding = 0;

  std::vector<int64_t> tokens, positions;
  std::vector<int64_t> slots;         // slot_mapping: -1 in padding rows
  std::vector<int64_t> tables;        // [row][max_blocks]
  std::vector<int64_t> window_table;  // swa_slot_mapping

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
};

// The row counts that steps are padded up to: those for which graphs are captured.
int64_t padded_size(int64_t num_rows);

StepRows make_rows(std::vector<Chunk> chunks, const Scheduler& scheduler);

// Rows with a slot beyond the cache or a position beyond the rotary table.
std::vector<int64_t> bad_rows(const StepRows& rows, const SchedulerConfig& config);

// Makes padding of the rows of this chunk.
void blank_chunk(StepRows& rows, size_t chunk);

// The chunk that a row belongs to, chunks.size() for padding.
size_t chunk_of_row(const StepRows& rows, int64_t row);

}  // namespace kvrope::engine
