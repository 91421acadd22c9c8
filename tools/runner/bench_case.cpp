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

constexpr double kMostCheckedBytes = 64e6;  // by the oracle
constexpr double kMostBytes = 8e9;

// Times depend little on values, and random numbers of many rows take long to draw.
CaseSpec with_cheap_values(CaseSpec spec) {
  if (spec.inputs.values == InputsSpec::Values::normal) spec.inputs.values = InputsSpec::Values::ramp;
  return spec;
}

bool same_bytes(const at::Tensor& one, const at::Tensor& other) {
  return at::equal(one.contiguous().view(at::kByte), other.cpu().contiguous().view(at::kByte));
}

CaseResult compare_with_cpu(const CaseSpec& spec, c10::Device device) {
  CaseSpec cheap = with_cheap_values(spec);
  CallData data = make_call_data(cheap);
  CallBuffers buffers(cheap, data, c10::kCPU);
  FusedArguments on_cpu = buffers.arguments();
  FusedArguments on_device = copy_of(on_cpu, device);
  fused_qk_rope_reshape_and_cache(on_cpu);
  fused_qk_rope_reshape_and_cache(on_device);
  check(device);
  std::vector<at::Tensor> ours;
  for_each_tensor(on_device, [&](at::Tensor& tensor) { ours.push_back(tensor); });
  CaseResult result;
  size_t next = 0;
  for_each_tensor(on_cpu, [&](at::Tensor& tensor) {
    if (!same_bytes(tensor, ours[next++])) result.disposition = Disposition::failed;
  });
  if (result.disposition == Disposition::failed) result.message = "not what the CPU kernel leaves";
  return result;
}

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

// The first set is the given one.
std::vector<FusedArguments> make_sets(const FusedArguments& first, c10::Device device,
                                      const CallTiming& timing) {
  std::vector<FusedArguments> sets = {first};
  at::Tensor shared = shares_table(timing.l2) ? first.cos_sin : at::Tensor();
  for (int64_t i = 1; i < timing.group.sets; ++i) sets.push_back(copy_of(first, device, shared));
  return sets;
}

}  // namespace

BenchCheck check_before_timing(const CaseSpec& spec, c10::Device device) {
  if (spec.expected_error)
    return {{Disposition::skipped, "expects an error", {}, 0}, "nothing: it is refused"};
  double bytes = estimated_bytes(spec);
  if (bytes > kMostBytes || 16 * bytes > available_host_memory()) {
    return {{Disposition::skipped, "needs more memory than a benchmark is given", {}, 0},
            "nothing: it is skipped"};
  }
  if (bytes <= kMostCheckedBytes) return {run_case(spec, device, fused_qk_rope_reshape_and_cache), "oracle"};
  if (device.is_cpu()) return {{}, "nothing: it has many rows"};
  return {compare_with_cpu(spec, device), "CPU kernel"};
}

BenchResult bench_case(const CaseSpec& spec, c10::Device device, L2State l2, const BenchSettings& settings) {
  bool is_large = estimated_bytes(spec) > kMostCheckedBytes;
  CaseSpec timed = is_large ? with_cheap_values(spec) : spec;
  CallData data = make_call_data(timed);
  CallBuffers buffers(timed, data, device);
  FusedArguments first = buffers.arguments();
  // The operation would allocate them: given, a call is the one launch that is to be timed.
  if (!first.q_out) first.q_out = at::empty_like(first.q);
  if (!first.k_out) first.k_out = at::empty_like(first.k);
  if (first.output_zeros && !first.zeros_out) first.zeros_out = at::empty_like(first.q);

  BenchResult result;
  result.l2 = l2;
  result.bytes = call_bytes(timed, data.plan);
  int64_t held = held_bytes(first) + 2 * result.bytes.all();  // and what the floors take
  if (shares_table(l2)) held -= static_cast<int64_t>(first.cos_sin.storage().nbytes());
  result.group = plan_calls(l2, result.bytes.all(), held, spare_memory(device));
  CallTiming timing;
  timing.group = result.group;
  timing.l2 = l2;

  std::vector<FusedArguments> sets = make_sets(first, device, timing);
  Call call = [&](int64_t i) { fused_qk_rope_reshape_and_cache(sets[static_cast<size_t>(i) % sets.size()]); };
  std::vector<Candidate> candidates = our_candidates(result, device, timing, settings, call);
  for (Floor& floor : make_floors(timed, data.plan, result.bytes, device, timing)) {
    candidates.push_back(candidate(floor.name, floor.bytes, device, timing, floor.call));
  }
  result.times = time_in_rounds(candidates, settings.rounds);
  if (spec.tokens() == 1) result.host_microseconds = host_microseconds(device, call);
  if (device.is_cuda()) forget_fault(device);
  return result;
}

}  // namespace kvrope::regress
