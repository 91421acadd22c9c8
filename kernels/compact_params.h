// The compact form of the parameters (index_math.h).
#pragma once

#include "rope_cache_params.h"

namespace kvrope {

// Whether every stride and size fits.
bool is_compact(const RopeCacheParams& params);

CompactParams make_compact(const RopeCacheParams& params);

}  // namespace kvrope
