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

// Copies of the record have a stream of their own: graphs that other threads capture do not mind, whereas
// waiting for the whole device would make their captures invalid. Callers hold the mutex.
cudaStream_t record_stream(c10::DeviceIndex device) {
  static std::array<cudaStream_t, C10_COMPILE_TIME_MAX_GPUS> streams{};
  cudaStream_t& stream = streams.at(device);
  if (stream == nullptr) C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

FaultRecord copy_record(c10::DeviceIndex device) {
  FaultRecord record;
  const cudaStream_t stream = record_stream(device);
  C10_CUDA_CHECK(
      cudaMemcpyAsync(&record, cuda_fault_record(device), sizeof record, cudaMemcpyDeviceToHost, stream));
  C10_CUDA_CHECK(cudaStreamSynchronize(stream));
  return record;
}

FaultRecord read_record(c10::Device device) {
  TORCH_CHECK_VALUE(!is_capturing(device), text("kvrope: the fault record of ", device,
                                                " cannot be read while a graph is being captured"));
  C10_CUDA_CHECK(cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream(device.index())));
  FaultRecord record = copy_record(device.index());
  if (!record.is_claimed) return record;
  // A launch on another stream may be filling it in.
  while (record.kind == FaultKind::none) record = copy_record(device.index());
  return copy_record(device.index());
}

// A claimed record is nobody's to write: it is emptied first and free again at the very end.
void clear_record(c10::DeviceIndex device) {
  constexpr size_t claim = offsetof(FaultRecord, kind);
  FaultRecord* record = cuda_fault_record(device);
  const cudaStream_t stream = record_stream(device);
  C10_CUDA_CHECK(cudaMemsetAsync(&record->kind, 0, sizeof(FaultRecord) - claim, stream));
  C10_CUDA_CHECK(cudaMemsetAsync(&record->is_claimed, 0, claim, stream));
  C10_CUDA_CHECK(cudaStreamSynchronize(stream));  // a launch on another stream may follow at once
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
  const RelaxedCaptureMode relaxed;
  const std::lock_guard lock(record_mutex());
  return describe(read_record(device));
}

void cuda_check(c10::Device device) {
  device = with_index(device);
  const c10::cuda::CUDAGuard guard(device);
  const RelaxedCaptureMode relaxed;
  const std::lock_guard lock(record_mutex());
  const std::optional<Fault> fault = describe(read_record(device));
  if (!fault) return;
  clear_record(device.index());
  TORCH_CHECK_INDEX(
      false, text("kvrope on ", device, ": ", fault->argument, " gives ", fault->value, " for row ",
                  fault->row, ": ", fault->kind,
                  "; the row was not cached, and its q_out and k_out are NaN if the position was the fault"));
}

}  // namespace kvrope
