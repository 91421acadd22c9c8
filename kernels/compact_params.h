// The parameters in 32 bits (index_math.h).
#pragma once

#include "rope_cache_params.h"

namespace kvrope {

// The stride of rows of the table is turned into bytes, of at most 4 an element.
constexpr int64_t kMaxByteAddressedStride = 0x7fffffff / 4;

// Whether every stride and size fits.
bool is_compact(const RopeCacheParams& params);

CompactParams make_compact(const RopeCacheParams& params);

}  // namespace kvrope
