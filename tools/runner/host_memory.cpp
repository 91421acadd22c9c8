#include "runner/host_memory.h"

#include <fstream>
#include <limits>
#include <string>

namespace kvrope::regress {

double available_host_memory() {
  std::ifstream memory("/proc/meminfo");
  std::string key;
  for (double kibibytes; memory >> key >> kibibytes; memory.ignore(100, '\n')) {
    if (key == "MemAvailable:") return kibibytes * 1024;
  }
  return std::numeric_limits<double>::infinity();
}

}  // namespace kvrope::regress
