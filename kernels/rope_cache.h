// One launch: rotate q and k, write rotated k and unchanged v into the paged caches.
#pragma once

#include <cuda_runtime_api.h>

#include "rope_cache_params.h"

namespace kvrope {

// Launches on the current device. Takes params as checked: sizes and strides are trusted, the values of slots
// and positions are not. No synchronisation, no allocation. use_pdl asks for programmatic dependent launch,
// which is granted on compute capability 9.0 and newer.
cudaError_t launch_rope_cache(const RopeCacheParams& params, cudaStream_t stream, bool use_pdl = true);

// The current device's fault record, one per device for the life of the process; all zero means no fault.
cudaError_t fault_record_address(FaultRecord** record);

}  // namespace kvrope
