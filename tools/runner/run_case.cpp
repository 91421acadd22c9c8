#include "runner/run_case.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <fstream>
#include <limits>
#include <optional>
#include <regex>

#include "fault.h"
#include "runner/call_buffers.h"
#include "runner/call_data.h"
#include "runner/check_call.h"

namespace kvrope::regress {
namespace {

// The message without the stack trace that LibTorch may add.
std::string message_of(const std::exception& error) {
  if (const auto* torch_error = dynamic_cast<const c10::Error*>(&error)) {
    return torch_error->what_without_backtrace();
  }
  return error.what();
}

// What Python gives as ValueError, TypeError or IndexError: the errors of a call that is told no.
bool is_refusal(const std::exception& error) {
  return dynamic_cast<const c10::ValueError*>(&error) || dynamic_cast<const c10::TypeError*>(&error) ||
         dynamic_cast<const c10::IndexError*>(&error);
}

double as_double(int64_t size) {
  return static_cast<double>(size);
}

// Bytes of host memory that a case takes: numbers, buffers, and their copies before and after the call. Those
// of its rows are known before anything is planned.
double host_bytes_of_rows(const CaseSpec& spec) {
  double q = as_double(spec.tokens()) * as_double(spec.q_heads * spec.head_dim);
  double kv = as_double(spec.kv_rows()) * as_double(spec.kv_heads * (spec.head_dim + spec.value_dim()));
  double indices = as_double(spec.tokens()) + as_double(spec.slots_length());
  return 32 * (q + kv) + 100 * indices;
}

double host_bytes_of_caches(const CaseSpec& spec, const RowPlan& plan) {
  double table = as_double(plan.table_rows) * as_double(spec.table_width());
  double slots = as_double(plan.num_blocks) * as_double(spec.block_size);
  double cache = slots * as_double(spec.kv_heads * (spec.head_dim + spec.value_dim())) +
                 2 * as_double(plan.num_blocks) * as_double(spec.page_padding);
  return 32 * table + 4 * cache * bytes_of(spec.cache_format());
}

// What the machine can give out without swapping; no limit where it does not say.
double available_bytes() {
  std::ifstream memory("/proc/meminfo");
  std::string key;
  for (double kibibytes; memory >> key >> kibibytes; memory.ignore(100, '\n')) {
    if (key == "MemAvailable:") return kibibytes * 1024;
  }
  return std::numeric_limits<double>::infinity();
}

std::optional<std::string> lacking_memory(double needed) {
  double available = available_bytes();
  if (needed < 0.8 * available) return std::nullopt;
  auto gigabytes = [](double bytes) { return std::to_string(static_cast<int64_t>(bytes / 1e9) + 1) + " GB"; };
  return "needs " + gigabytes(needed) + " of host memory, " + gigabytes(available) + " are free";
}

std::string fault_text(const Fault& fault) {
  return fault.kind + " of " + fault.argument + " in row " + std::to_string(fault.row) + ", value " +
         std::to_string(fault.value);
}

// The message of the fault that the device has recorded since the last call, which is taken away; nothing
// without one.
std::optional<std::string> take_fault(c10::Device device, std::string& raised) {
  std::optional<Fault> fault = last_fault(device);
  if (!fault) return std::nullopt;
  try {
    check(device);
  } catch (const std::exception& error) {
    raised = message_of(error);
  }
  return fault_text(*fault);
}

CaseResult finish(Findings findings) {
  CaseResult result;
  result.findings = std::move(findings);
  if (result.findings.mismatches > 0) {
    result.disposition = Disposition::failed;
    result.message = std::to_string(result.findings.mismatches) + " mismatches";
  }
  return result;
}

// The error of a call that must be refused: its text is right and nothing was written.
CaseResult judge_error(const CaseSpec& spec, const std::string& message, Findings findings) {
  CaseResult result = finish(std::move(findings));
  if (!std::regex_search(message, std::regex(*spec.expected_error))) {
    result.disposition = Disposition::failed;
    result.message = "expected an error that matches \"" + *spec.expected_error + "\", got: " + message;
  } else if (result.disposition == Disposition::passed) {
    result.disposition = Disposition::rejected_as_expected;
    result.message = message;
  } else {
    result.message += " after a call that raised: " + message;
  }
  return result;
}

CaseResult judge_return(const CaseSpec& spec, const std::optional<std::string>& fault,
                        const std::string& raised, Findings findings) {
  if (spec.expected_error && fault) return judge_error(spec, raised, std::move(findings));
  CaseResult result = finish(std::move(findings));
  if (spec.expected_error) {
    result.disposition = Disposition::failed;
    result.message = "expected an error that matches \"" + *spec.expected_error + "\", but the call returned";
  } else if (fault) {
    result.disposition = Disposition::failed;
    result.message = "the device recorded a fault: " + *fault;
  }
  return result;
}

void tell_mismatch(const OnMismatch& on_mismatch, const CallData& data, const CallBuffers& buffers,
                   const FusedOutputs* outputs, CaseResult& result) {
  if (!on_mismatch || result.findings.mismatches == 0) return;
  try {
    on_mismatch({data, buffers, outputs, result});
  } catch (const std::exception& error) {
    result.message += "; " + message_of(error);
  }
}

CaseResult call_and_judge(const CaseSpec& spec, c10::Device device, const Operation& operation,
                          const OnMismatch& on_mismatch) {
  double bytes_of_rows = host_bytes_of_rows(spec);
  if (auto lacking = lacking_memory(bytes_of_rows)) return {Disposition::skipped, *lacking, {}, 0};
  double bytes = bytes_of_rows + host_bytes_of_caches(spec, plan_rows(spec));
  if (auto lacking = lacking_memory(bytes)) return {Disposition::skipped, *lacking, {}, 0};
  CallData data = make_call_data(spec);
  CallBuffers buffers(spec, data, device);
  FusedArguments arguments = buffers.arguments();
  if (spec.misuse) apply_misuse(*spec.misuse, arguments);
  FusedOutputs outputs;
  try {
    outputs = operation(arguments);
  } catch (const std::exception& error) {
    std::string message = message_of(error);
    if (!spec.expected_error) return {Disposition::error, message, {}, 0};
    if (!is_refusal(error)) {
      return {Disposition::failed, "expected a ValueError, TypeError or IndexError, got: " + message, {}, 0};
    }
    CaseResult result = judge_error(spec, message, check_untouched(buffers));
    tell_mismatch(on_mismatch, data, buffers, nullptr, result);
    return result;
  }
  std::string raised;
  std::optional<std::string> fault;
  if (device.is_cuda()) fault = take_fault(device, raised);
  if (spec.expected_error && !fault) return judge_return(spec, fault, raised, {});
  CaseResult result = judge_return(spec, fault, raised, check_call(spec, data, buffers, outputs));
  tell_mismatch(on_mismatch, data, buffers, &outputs, result);
  return result;
}

}  // namespace

const char* name_of(Disposition disposition) {
  switch (disposition) {
    case Disposition::passed:
      return "passed";
    case Disposition::failed:
      return "failed";
    case Disposition::rejected_as_expected:
      return "rejected-as-expected";
    case Disposition::skipped:
      return "skipped";
    case Disposition::error:
      return "error";
  }
  return "";
}

CaseResult run_case(const CaseSpec& spec, c10::Device device, const Operation& operation,
                    const OnMismatch& on_mismatch) {
  auto start = std::chrono::steady_clock::now();
  CaseResult result;
  try {
    result = call_and_judge(spec, device, operation, on_mismatch);
  } catch (const c10::OutOfMemoryError& error) {
    result = {Disposition::skipped, "the device's memory is short: " + message_of(error), {}, 0};
  } catch (const std::exception& error) {
    result = {Disposition::error, message_of(error), {}, 0};
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace kvrope::regress
