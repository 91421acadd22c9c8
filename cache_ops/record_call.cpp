#include "record_call.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <mutex>
#include <set>
#include <string>

#include "record_file.h"
#include "recorded_case.h"
#include "text.h"
#ifdef KVROPE_WITH_CUDA
#include "cuda_capture.h"
#endif

namespace kvrope {
namespace {

const char* record_path() {
  static const char* const path = std::getenv("KVROPE_RECORD");
  return path != nullptr && *path != '\0' ? path : nullptr;
}

RecordedCase recorded_case(const FusedArguments& args) {
#ifdef KVROPE_WITH_CUDA
  if (args.q.is_cuda()) {
    // Other threads may be capturing: the copies of this one are none of their business.
    const RelaxedCaptureMode relaxed;
    return make_recorded_case(args, is_capturing(args.q.device()));
  }
#endif
  return make_recorded_case(args, false);
}

void warn_once(const std::string& complaint) {
  static std::once_flag flag;
  std::call_once(flag, [&] {
    TORCH_WARN(text("KVROPE_RECORD: ", record_path(), " ", complaint,
                    "; calls go on, this one and perhaps others are not recorded"));
  });
}

}  // namespace

bool records_calls() {
  static const bool records = record_path() != nullptr;
  return records;
}

void record_call(const FusedArguments& args) {
  static std::mutex mutex;
  static std::set<std::string> seen;
  static const RecordFile file(record_path());
  try {
    const RecordedCase recorded = recorded_case(args);
    const std::lock_guard<std::mutex> lock(mutex);
    if (seen.count(recorded.id)) return;
    file.append(recorded);
    seen.insert(recorded.id);
  } catch (const c10::Error& error) {
    warn_once(std::string("is not written: ") + error.what_without_backtrace());
  } catch (const std::exception& error) {
    warn_once(error.what());
  }
}

}  // namespace kvrope
