#include "runner/cuda_floors.h"

#include <ATen/Functions.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "floors.h"

namespace kvrope::regress {
namespace {

constexpr int64_t kWordBytes = 16;
constexpr int64_t kMostChainTokens = 512;  // beyond them latency is not what a call waits for
constexpr int64_t kMostChainWords = 512;   // of a row
constexpr int64_t kChainTableColumns = 128;

struct CopyBuffers {
  at::Tensor from, to;
};

std::vector<CopyBuffers> copy_buffers(int64_t bytes, c10::Device device, int64_t sets) {
  at::TensorOptions options = at::TensorOptions(at::kByte).device(device);
  std::vector<CopyBuffers> buffers;
  for (int64_t i = 0; i < sets; ++i)
    buffers.push_back({at::ones({bytes}, options), at::zeros({bytes}, options)});
  return buffers;
}

cudaStream_t stream() {
  return c10::cuda::getCurrentCUDAStream();
}

void check_launch(int error) {
  C10_CUDA_CHECK(static_cast<cudaError_t>(error));
}

int64_t half_in_words(int64_t bytes) {
  return std::max<int64_t>(1, bytes / 2 / kWordBytes);
}

Floor copy_floor(const std::vector<CopyBuffers>& buffers, int64_t bytes) {
  int64_t words = half_in_words(bytes);
  Call call = [=](int64_t i) {
    const CopyBuffers& set = buffers[static_cast<size_t>(i) % buffers.size()];
    check_launch(kvrope_floor_copy(set.from.const_data_ptr(), set.to.mutable_data_ptr(), words, stream()));
  };
  return {"copy", 2 * words * kWordBytes, call};
}

Floor memcpy_floor(const std::vector<CopyBuffers>& buffers, int64_t bytes) {
  auto half = static_cast<size_t>(half_in_words(bytes) * kWordBytes);
  Call call = [=](int64_t i) {
    const CopyBuffers& set = buffers[static_cast<size_t>(i) % buffers.size()];
    C10_CUDA_CHECK(cudaMemcpyAsync(set.to.mutable_data_ptr(), set.from.const_data_ptr(), half,
                                   cudaMemcpyDeviceToDevice, stream()));
  };
  return {"memcpy", static_cast<int64_t>(2 * half), call};
}

// Positions and slots are the case's, as the chain kernel takes them: int64, within the table, negative
// where nothing is cached. Slots of a large cache are folded into a smaller one.
struct ChainRows {
  std::vector<int64_t> positions, slots;
  int64_t table_rows = 1;
};

ChainRows chain_rows(const CaseSpec& spec, const RowPlan& plan) {
  ChainRows rows;
  rows.table_rows = std::max<int64_t>(1, plan.table_rows);
  int64_t capacity = plan.num_blocks * spec.block_size;
  int64_t most_slots = std::max<int64_t>(1024, 4 * spec.tokens());
  for (int64_t row = 0; row < spec.tokens(); ++row) {
    auto i = static_cast<size_t>(row);
    int64_t position = plan.pos.front()[i] + (plan.offs ? (*plan.offs)[i] : 0);
    rows.positions.push_back(std::clamp<int64_t>(position, 0, rows.table_rows - 1));
    int64_t slot = destination(plan, capacity, row).slot;
    rows.slots.push_back(slot < 0 ? slot : slot % most_slots);
  }
  return rows;
}

struct ChainBuffers {
  at::Tensor positions, table, slots, q, q_out, cache;
};

Floor chain_floor(const CaseSpec& spec, const RowPlan& plan, c10::Device device, const CallTiming& timing) {
  int64_t tokens = spec.tokens();
  int64_t row_bytes = spec.q_heads * spec.head_dim * bytes_of(spec.dtype);
  int64_t words = std::clamp<int64_t>(row_bytes / kWordBytes, 1, kMostChainWords);
  ChainRows rows = chain_rows(spec, plan);
  at::TensorOptions floats = at::TensorOptions(at::kFloat).device(device);
  auto words_of = [&](int64_t count) { return at::ones({count * words * kWordBytes / 4}, floats); };
  at::Tensor table = at::ones({rows.table_rows, kChainTableColumns}, floats);
  int64_t last_slot = *std::max_element(rows.slots.begin(), rows.slots.end());
  std::vector<ChainBuffers> buffers;
  for (int64_t i = 0; i < timing.group.sets; ++i) {
    if (!shares_table(timing.l2)) table = table.clone();
    buffers.push_back({at::tensor(rows.positions, at::kLong).to(device), table,
                       at::tensor(rows.slots, at::kLong).to(device), words_of(tokens), words_of(tokens),
                       words_of(last_slot + 1)});
  }
  Call call = [=](int64_t i) {
    const ChainBuffers& set = buffers[static_cast<size_t>(i) % buffers.size()];
    check_launch(kvrope_floor_chain(
        set.positions.const_data_ptr<int64_t>(), set.table.const_data_ptr<float>(),
        set.slots.const_data_ptr<int64_t>(), set.q.const_data_ptr(), set.q_out.mutable_data_ptr(),
        set.cache.mutable_data_ptr(), static_cast<int>(tokens), static_cast<int>(words), stream()));
  };
  int64_t bytes = tokens * (3 * words * kWordBytes + kChainTableColumns / 2 * 4 + 16);
  return {"chain", bytes, call};
}

}  // namespace

std::vector<Floor> make_cuda_floors(const CaseSpec& spec, const RowPlan& plan, const CallBytes& bytes,
                                    c10::Device device, const CallTiming& timing) {
  std::vector<CopyBuffers> buffers =
      copy_buffers(half_in_words(bytes.all()) * kWordBytes, device, timing.group.sets);
  std::vector<Floor> floors = {copy_floor(buffers, bytes.rows()), memcpy_floor(buffers, bytes.all())};
  if (spec.tokens() > 0 && spec.tokens() <= kMostChainTokens) {
    floors.push_back(chain_floor(spec, plan, device, timing));
  }
  return floors;
}

}  // namespace kvrope::regress
