#include "cpu_targets.h"

namespace kvrope {

namespace any_processor {
ServeTokens serve_tokens;
}

#ifdef KVROPE_HAS_X86_64_LEVELS
namespace x86_64_v3 {
ServeTokens serve_tokens;
}
namespace x86_64_v4 {
ServeTokens serve_tokens;
}
#endif

namespace {

#ifdef KVROPE_HAS_X86_64_LEVELS
bool has_x86_64_v3() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
         __builtin_cpu_supports("bmi2");
}

bool has_x86_64_v4() {
  return has_x86_64_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
#endif

std::vector<CpuTarget> find_targets() {
  std::vector<CpuTarget> targets;
#ifdef KVROPE_HAS_X86_64_LEVELS
  if (has_x86_64_v4()) targets.push_back({"x86-64-v4", x86_64_v4::serve_tokens});
  if (has_x86_64_v3()) targets.push_back({"x86-64-v3", x86_64_v3::serve_tokens});
#endif
  targets.push_back({"any processor", any_processor::serve_tokens});
  return targets;
}

}  // namespace

const std::vector<CpuTarget>& cpu_targets() {
  static const std::vector<CpuTarget> targets = find_targets();
  return targets;
}

}  // namespace kvrope
