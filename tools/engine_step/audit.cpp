#include "engine_step/audit.h"

#include <set>

namespace kvrope::engine {
namespace {

void audit_pool(const std::string& name, const BlockPool& pool, const std::vector<int64_t>& held,
                std::vector<std::string>& complaints) {
  std::vector<int64_t> listed(held.size(), 0);
  for (const int64_t block : pool.free_blocks()) ++listed[static_cast<size_t>(block)];
  for (int64_t block = 0; block < pool.num_blocks(); ++block) {
    const auto i = static_cast<size_t>(block);
    const std::string text = name + " block " + std::to_string(block) + ": ";
    if (pool.references(block) != held[i]) {
      complaints.push_back(text + std::to_string(pool.references(block)) + " references, held by " +
                           std::to_string(held[i]) + " requests");
    }
    if (listed[i] != (held[i] == 0)) {
      complaints.push_back(text + std::to_string(listed[i]) + " times in the free list, held by " +
                           std::to_string(held[i]) + " requests");
    }
  }
}

}  // namespace

std::vector<std::string> audit_blocks(const Scheduler& scheduler) {
  std::vector<int64_t> held(static_cast<size_t>(scheduler.blocks().num_blocks()), 0);
  std::vector<int64_t> held_in_window(static_cast<size_t>(scheduler.window().pool().num_blocks()), 0);
  std::vector<std::string> complaints;
  for (const RequestPtr& request : scheduler.running()) {
    for (size_t i = 0; i < request->blocks.size(); ++i) {
      const int64_t block = request->blocks[i];
      ++held[static_cast<size_t>(block)];
      if (static_cast<int64_t>(i) < request->first_window_block) continue;
      if (scheduler.window().has(block)) {
        ++held_in_window[static_cast<size_t>(scheduler.window().window_block(block))];
      } else {
        complaints.push_back("full block " + std::to_string(block) + ": in the window of request " +
                             std::to_string(request->id) + " and evicted");
      }
    }
  }
  audit_pool("full", scheduler.blocks(), held, complaints);
  audit_pool("window", scheduler.window().pool(), held_in_window, complaints);
  return complaints;
}

std::vector<std::string> audit_writes(const StepRows& rows, const Scheduler& scheduler) {
  std::vector<std::string> complaints;
  std::set<int64_t> written;
  for (int64_t row = 0; row < rows.size(); ++row) {
    const int64_t slot = rows.slots[static_cast<size_t>(row)];
    if (slot < 0) continue;
    const std::string text = "row " + std::to_string(row) + " writes slot " + std::to_string(slot);
    if (!written.insert(slot).second) complaints.push_back(text + ", as an earlier row does");
    const int64_t references = scheduler.blocks().references(slot / scheduler.config().block_size);
    if (references != 1) {
      complaints.push_back(text + " of a block with " + std::to_string(references) + " references");
    }
  }
  return complaints;
}

}  // namespace kvrope::engine
