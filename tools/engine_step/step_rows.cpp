#include "engine_step/step_rows.h"

#include <algorithm>

namespace kvrope::engine {
namespace {

constexpr int64_t kPaddingSlot = -1;

void add_token(StepRows& rows, const Request& request, int64_t position, const SchedulerConfig& config) {
  const int64_t block = request.blocks[static_cast<size_t>(position / config.block_size)];
  rows.tokens.push_back(request.tokens[static_cast<size_t>(position)]);
  rows.positions.push_back(position);
  rows.slots.push_back(block * config.block_size + position % config.block_size);
  rows.tables.insert(rows.tables.end(), request.blocks.begin(), request.blocks.end());
  rows.tables.resize(rows.tokens.size() * static_cast<size_t>(config.max_blocks()));
}

}  // namespace

int64_t padded_size(int64_t num_rows) {
  for (int64_t size : {1, 2, 4, 8}) {
    if (num_rows <= size) return size;
  }
  return (num_rows + 7) / 8 * 8;
}

StepRows make_rows(std::vector<Chunk> chunks, const Scheduler& scheduler) {
  const SchedulerConfig& config = scheduler.config();
  StepRows rows;
  for (const Chunk& chunk : chunks) {
    for (int64_t i = 0; i < chunk.count; ++i) add_token(rows, *chunk.request, chunk.first + i, config);
  }
  rows.is_decode = std::all_of(chunks.begin(), chunks.end(), [](const Chunk& c) { return c.count == 1; });
  rows.chunks = std::move(chunks);

  const int64_t size = padded_size(rows.size());
  rows.num_padding = size - rows.size();
  rows.tokens.resize(static_cast<size_t>(size), 0);
  rows.positions.resize(static_cast<size_t>(size), 0);
  rows.slots.resize(static_cast<size_t>(size), kPaddingSlot);
  rows.tables.resize(static_cast<size_t>(size * config.max_blocks()), 0);
  rows.window_table = scheduler.window().slot_table();
  return rows;
}

std::vector<int64_t> bad_rows(const StepRows& rows, const SchedulerConfig& config) {
  std::vector<int64_t> bad;
  for (int64_t row = 0; row < rows.size(); ++row) {
    const int64_t slot = rows.slots[static_cast<size_t>(row)];
    const int64_t position = rows.positions[static_cast<size_t>(row)];
    const bool has_position = position >= 0 && position < config.max_length;
    if (slot >= config.num_slots() || (slot >= 0 && !has_position)) bad.push_back(row);
  }
  return bad;
}

size_t chunk_of_row(const StepRows& rows, int64_t row) {
  size_t chunk = 0;
  for (; chunk < rows.chunks.size() && row >= rows.chunks[chunk].count; ++chunk) {
    row -= rows.chunks[chunk].count;
  }
  return chunk;
}

void blank_chunk(StepRows& rows, size_t chunk) {
  for (int64_t row = 0; row < rows.size(); ++row) {
    if (chunk_of_row(rows, row) != chunk) continue;
    rows.slots[static_cast<size_t>(row)] = kPaddingSlot;
    rows.positions[static_cast<size_t>(row)] = 0;
  }
}

}  // namespace kvrope::engine
