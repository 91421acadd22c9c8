#include "rope_cache_launch.cuh"

namespace kvrope {

template cudaError_t launch_with_types<float, fp8_e5m2>(const RopeCacheParams&, const LaunchPlan&,
                                                        cudaStream_t);

}  // namespace kvrope
