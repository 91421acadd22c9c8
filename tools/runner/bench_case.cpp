#include "runner/bench_case.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include "fault.h"
#include "runner/bench_floors.h"
#include "runner/buffer_sets.h"
#include "runner/call_buffers.h"
#include "runner/call_data.h"
#include "runner/host_memory.h"

namespace kvrope::regress {
namespace {

constexpr double kMostCheckedBytes = 32e6;  // by the oracle
constexpr double kMostBytes = 8e9;

// Rows out of range belong to some cases; the check before has judged them.
void forget_fault(c10::Device device) {
  try {
    check(device);
  } catch (const c10::IndexError&) {
  }
}

Candidate candidate(const std::string& name, int64_t bytes, c10::Device device, const CallTiming& timing,
                    const Call& call) {
  return {name, bytes, prepare_calls(device, timing, call)};
}

std::vector<Candidate> our_candidates(const BenchResult& result, c10::Device device, CallTiming timing,
                                      const BenchSettings& settings, const Call& call) {
  timing.planted_slowdown = settings.planted_slowdown;
  std::vector<Candidate> candidates;
  if (settings.pdl != PdlChoice::off) {
    candidates.push_back(candidate("kvrope", result.bytes.all(), device, timing, call));
  }
  timing.without_pdl = true;
  if (settings.pdl != PdlChoice::on) {
    candidates.push_back(candidate("kvrope without PDL", result.bytes.all(), device, timing, call));
  }
  return candidates;
}

// All of the memory, what lies around the tensors too.
bool same_bytes(FusedArguments one, FusedArguments other) {
  std::vector<at::Tensor> others;
  for_each_tensor(other, [&](at::Tensor& tensor) { others.push_back(bytes_of_memory(tensor).cpu()); });
  size_t next = 0;
  bool same = true;
  for_each_tensor(one, [&](at::Tensor& tensor) {
    same = at::equal(bytes_of_memory(tensor).cpu(), others[next++]) && same;
  });
  return same;
}

// The first set is the given one.
std::vector<FusedArguments> make_sets(const FusedArguments& first, c10::Device device,
                                      const CallTiming& timing) {
  std::vector<FusedArguments> sets = {first};
  at::Tensor shared = shares_table(timing.l2) ? first.cos_sin : at::Tensor();
  for (int64_t i = 1; i < timing.group.sets; ++i) sets.push_back(copy_of(first, device, shared));
  return sets;
}

}  // namespace

BenchCase::BenchCase(const CaseSpec& spec, c10::Device device)
    : spec_(spec), device_(device), is_large_(estimated_bytes(spec) > kMostCheckedBytes) {
  // Times depend little on values, and random numbers of many rows take long to draw.
  if (is_large_) spec_.inputs.values = InputsSpec::Values::ramp;
}

void BenchCase::prepare() {
  if (arguments_) return;
  CallData data = make_call_data(spec_);
  plan_ = data.plan;
  FusedArguments arguments = CallBuffers(spec_, data, device_).arguments();
  // The operation would allocate these: given, a call is the one launch that is to be timed.
  if (!arguments.q_out) arguments.q_out = at::empty_like(arguments.q);
  if (!arguments.k_out) arguments.k_out = at::empty_like(arguments.k);
  if (arguments.output_zeros && !arguments.zeros_out) arguments.zeros_out = at::empty_like(arguments.q);
  arguments_ = arguments;
}

BenchCheck BenchCase::check() {
  auto skipped = [](const char* reason) {
    return BenchCheck{{Disposition::skipped, reason, {}, 0}, "nothing: it is skipped"};
  };
  if (spec_.expected_error) return skipped("expects an error");
  double bytes = estimated_bytes(spec_);
  if (bytes > kMostBytes || 16 * bytes > available_host_memory()) {
    return skipped("needs more memory than a benchmark is given");
  }
  if (!is_large_) return {run_case(spec_, device_, fused_qk_rope_reshape_and_cache), "oracle"};
  if (device_.is_cpu()) return {{}, "nothing: it has many rows"};
  return {compare_with_cpu(), "CPU kernel"};
}

CaseResult BenchCase::compare_with_cpu() {
  prepare();
  FusedArguments on_cpu = copy_of(*arguments_, c10::kCPU);
  fused_qk_rope_reshape_and_cache(on_cpu);
  fused_qk_rope_reshape_and_cache(*arguments_);
  kvrope::check(device_);
  CaseResult result;
  if (!same_bytes(on_cpu, *arguments_)) {
    result.disposition = Disposition::failed;
    result.message = "the CPU kernel leaves something else";
  }
  return result;
}

BenchResult BenchCase::measure(L2State l2, const BenchSettings& settings) {
  prepare();
  BenchResult result;
  result.l2 = l2;
  result.bytes = call_bytes(spec_, plan_);
  result.partial_value_sectors = partial_value_sectors(spec_, plan_);
  int64_t held = held_bytes(*arguments_) + 2 * result.bytes.all();  // and what the floors take
  if (shares_table(l2)) held -= static_cast<int64_t>(arguments_->cos_sin.storage().nbytes());
  result.group = plan_calls(l2, result.bytes.all(), held, spare_memory(device_));
  CallTiming timing;
  timing.group = result.group;
  timing.l2 = l2;

  std::vector<FusedArguments> sets = make_sets(*arguments_, device_, timing);
  Call call = [&](int64_t i) { fused_qk_rope_reshape_and_cache(sets[static_cast<size_t>(i) % sets.size()]); };
  std::vector<Candidate> candidates = our_candidates(result, device_, timing, settings, call);
  for (Floor& floor : make_floors(spec_, plan_, result.bytes, device_, timing)) {
    candidates.push_back(candidate(floor.name, floor.bytes, device_, timing, floor.call));
  }
  result.times = time_in_rounds(candidates, settings.rounds);
  if (spec_.tokens() == 1) result.host_microseconds = host_microseconds(device_, call);
  if (device_.is_cuda()) forget_fault(device_);
  return result;
}

}  // namespace kvrope::regress
