#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>

#include "cuda_capture.h"
#include "cuda_fault_record.h"
#include "fault.h"
#include "rope_cache.h"
#include "text.h"

namespace kvrope {
namespace {

// Threads ask one after another: none reads what another one clears.
std::mutex& record_mutex() {
  static std::mutex mutex;
  return mutex;
}

FaultRecord read_when_idle(c10::Device device) {
  FaultRecord record;
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  C10_CUDA_CHECK(
      cudaMemcpy(&record, cuda_fault_record(device.index()), sizeof record, cudaMemcpyDeviceToHost));
  return record;
}

FaultRecord read_record(c10::Device device) {
  TORCH_CHECK_VALUE(!is_capturing(device), text("kvrope: the fault record of ", device,
                                                " cannot be read while a graph is being captured"));
  const FaultRecord record = read_when_idle(device);
  // A launch of another thread may have claimed the record in between and still be filling it in.
  return record.is_claimed ? read_when_idle(device) : record;
}

// A claimed record is nobody's to write: it is emptied first and free again at the very end.
void clear_record(FaultRecord* record) {
  constexpr size_t claim = offsetof(FaultRecord, kind);
  C10_CUDA_CHECK(cudaMemset(&record->kind, 0, sizeof(FaultRecord) - claim));
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  C10_CUDA_CHECK(cudaMemset(&record->is_claimed, 0, claim));
  C10_CUDA_CHECK(cudaDeviceSynchronize());  // a launch on another stream may follow at once
}

std::optional<Fault> describe(const FaultRecord& record) {
  switch (record.kind) {
    case FaultKind::position_out_of_range:
      return Fault{"position_out_of_range", "pos", record.row, record.value};
    case FaultKind::slot_out_of_range:
      return Fault{"slot_out_of_range", "slot_mapping", record.row, record.value};
    case FaultKind::window_slot_out_of_range:
      return Fault{"window_slot_out_of_range", "swa_slot_mapping", record.row, record.value};
    default:
      return std::nullopt;
  }
}

c10::Device with_index(c10::Device device) {
  return device.has_index() ? device : c10::Device(device.type(), c10::cuda::current_device());
}

}  // namespace

FaultRecord* cuda_fault_record(c10::DeviceIndex device) {
  static std::array<std::atomic<FaultRecord*>, C10_COMPILE_TIME_MAX_GPUS> records{};
  FaultRecord* record = records.at(device).load(std::memory_order_acquire);
  if (record == nullptr) {
    const RelaxedCaptureMode relaxed;
    C10_CUDA_CHECK(fault_record_address(&record));
    records.at(device).store(record, std::memory_order_release);
  }
  return record;
}

std::optional<Fault> cuda_last_fault(c10::Device device) {
  device = with_index(device);
  const c10::cuda::CUDAGuard guard(device);
  const std::lock_guard lock(record_mutex());
  return describe(read_record(device));
}

void cuda_check(c10::Device device) {
  device = with_index(device);
  const c10::cuda::CUDAGuard guard(device);
  const std::lock_guard lock(record_mutex());
  const std::optional<Fault> fault = describe(read_record(device));
  if (!fault) return;
  clear_record(cuda_fault_record(device.index()));
  TORCH_CHECK_INDEX(
      false, text("kvrope on ", device, ": ", fault->argument, " gives ", fault->value, " for row ",
                  fault->row, ": ", fault->kind,
                  "; the row was not cached, and its q_out and k_out are NaN if the position was the fault"));
}

}  // namespace kvrope
