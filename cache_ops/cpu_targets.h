// cpu_rows.cpp, the inner part of the CPU kernel, is compiled once for any processor and, on x86-64, once for
// each level of it that brings more.
#pragma once

#include <vector>

#include "rope_cache_params.h"

namespace kvrope {

// Serves rows first .. last - 1. slots[t] is the slot of row t, or -1 where it is not cached.
using ServeTokens = void(const RopeCacheParams& params, int64_t first, int64_t last, const int64_t* slots);

struct CpuTarget {
  const char* name;
  ServeTokens* serve_tokens;
};

// Those that this processor can run, the quickest first. All give the same bits.
const std::vector<CpuTarget>& cpu_targets();

}  // namespace kvrope
