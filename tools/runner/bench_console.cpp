#include "runner/bench_console.h"

#include "runner/bench_statistics.h"

namespace kvrope::regress {
namespace {

std::string formatted(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string byte_text(int64_t bytes) {
  auto value = static_cast<double>(bytes);
  return bytes < 1'000'000 ? formatted("%.1f kB", value / 1e3) : formatted("%.1f MB", value / 1e6);
}

bool is_floor(const CandidateTimes& times) {
  return !times.name.starts_with("kvrope");
}

std::string ratio_text(const BenchResult& result, double ours) {
  std::string text;
  for (const CandidateTimes& times : result.times) {
    if (is_floor(times)) text += "  " + times.name + formatted(" %.2f", ours / median(times.microseconds));
  }
  return text;
}

std::string l2_text(const BenchResult& result) {
  std::string text = name_of(result.l2);
  // Memory was short, or the call moves so little that the sets would be too many.
  int64_t moved = result.group.sets * result.bytes.all();
  if (result.l2 == L2State::rotating && moved < 600'000'000) text += " (" + byte_text(moved) + ")";
  return text;
}

}  // namespace

void print_bench_heading(std::FILE* stream, c10::Device device) {
  const char* calls = device.is_cuda() ? "graph replay between CUDA events" : "wall clock of all threads";
  std::fprintf(
      stream,
      "Microseconds a call (%s), median of interleaved rounds; bytes that must move: inputs, outputs,\n"
      "table rows and indices. Behind each floor: times what it takes. L2 warm: the same buffers each\n"
      "call; flushed: flushed before the calls, each with its own buffers; rotating: over 600 MB.\n",
      calls);
}

void print_bench_result(std::FILE* stream, const CaseSpec& spec, const BenchCheck& check,
                        const BenchResult& result) {
  for (const CandidateTimes& times : result.times) {
    if (is_floor(times)) continue;
    double microseconds = median(times.microseconds);
    std::string line = spec.name + ", " + l2_text(result);
    if (times.name != "kvrope") line += ", " + times.name.substr(std::string("kvrope ").size());
    line += ": " + formatted("%.2f us", microseconds) + "  " + byte_text(times.bytes) + "  " +
            formatted("%.0f GB/s", static_cast<double>(times.bytes) / microseconds / 1000) +
            ratio_text(result, microseconds);
    if (result.partial_value_sectors > 0) {
      double sectors = static_cast<double>(result.partial_value_sectors) / microseconds / 1000;
      line += formatted("  %.1f partial sectors/ns", sectors);
    }
    if (result.host_microseconds) line += formatted("  host %.2f us", *result.host_microseconds);
    if (check.against.starts_with("nothing")) line += "  unchecked";
    std::fprintf(stream, "%s\n", line.c_str());
  }
  std::fflush(stream);
}

}  // namespace kvrope::regress
