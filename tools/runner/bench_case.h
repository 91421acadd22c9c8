// Checks a case and measures it: the operation in one L2 state, beside its floors in the same rounds.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runner/bench_rounds.h"
#include "runner/call_bytes.h"
#include "runner/l2_state.h"
#include "runner/run_case.h"

namespace kvrope::regress {

enum class PdlChoice { on, off, both };  // on: as the operation ships

struct BenchSettings {
  int64_t rounds = 30;
  PdlChoice pdl = PdlChoice::on;
  double planted_slowdown = 0;
};

// How a case was checked before it was timed.
struct BenchCheck {
  CaseResult result;
  std::string against;  // "oracle", "CPU kernel" or "nothing: ..."
};

struct BenchResult {
  L2State l2 = L2State::warm;
  CallGroup group{1, 1};
  CallBytes bytes;
  int64_t partial_value_sectors = 0;
  std::vector<CandidateTimes> times;        // "kvrope" and "kvrope without PDL", then the floors
  std::optional<double> host_microseconds;  // of one eager call; for single rows
};

class BenchCase {
 public:
  BenchCase(const CaseSpec& spec, c10::Device device);

  // Small cases against the oracle. Those of many elements, which the oracle would take minutes for, against
  // the CPU kernel, to the bit; on the CPU they go unchecked.
  BenchCheck check();

  // Throws what the call throws, and c10::OutOfMemoryError.
  BenchResult measure(L2State l2, const BenchSettings& settings);

 private:
  void prepare();
  CaseResult compare_with_cpu();

  CaseSpec spec_;
  c10::Device device_;
  bool is_large_;
  RowPlan plan_;
  std::optional<FusedArguments> arguments_;  // of the first set of buffers
};

}  // namespace kvrope::regress
