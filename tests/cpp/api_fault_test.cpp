// Slots and positions out of range on CUDA: recorded by the device, reported by last_fault and check,
// harmless to all other rows.
#include "fault.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "small_call.h"

namespace kvrope {
namespace {

const c10::Device kDevice(at::kCUDA, 0);
const CallOptions kOptions = {.device = kDevice};

class CudaFault : public testing::Test {
 protected:
  void SetUp() override {
    KVROPE_SKIP_WITHOUT(kDevice);
    ASSERT_FALSE(last_fault(kDevice)) << "left behind by an earlier test";
  }

  // Runs `bad`; the fault names this, and goes away with the check that throws it.
  static FusedOutputs expect_fault(const FusedArguments& bad, const std::string& kind,
                                   const std::string& argument, int64_t row, int64_t value) {
    const FusedOutputs outputs = fused_qk_rope_reshape_and_cache(bad);
    for (int i = 0; i < 2; ++i) {  // looking does not clear
      const std::optional<Fault> fault = last_fault(kDevice);
      EXPECT_TRUE(fault.has_value());
      if (!fault) return outputs;
      EXPECT_EQ(fault->kind, kind);
      EXPECT_EQ(fault->argument, argument);
      EXPECT_EQ(fault->row, row);
      EXPECT_EQ(fault->value, value);
    }
    EXPECT_THROW(check(kDevice), c10::IndexError);
    EXPECT_FALSE(last_fault(kDevice));
    EXPECT_NO_THROW(check(kDevice));
    return outputs;
  }

  // The caches are those of a call in which the bad row is padding.
  static void expect_caches_without_row(const FusedArguments& bad, int64_t row) {
    FusedArguments good = small_call(kOptions);
    good.slot_mapping[row] = -1;
    fused_qk_rope_reshape_and_cache(good);
    check(kDevice);
    EXPECT_TRUE(is_same_bits(bad.key_cache, good.key_cache));
    EXPECT_TRUE(is_same_bits(bad.value_cache, good.value_cache));
  }
};

TEST_F(CudaFault, SlotOutOfRange) {
  const FusedOutputs good = fused_qk_rope_reshape_and_cache(small_call(kOptions));
  FusedArguments args = small_call(kOptions);
  args.slot_mapping[2] = 96;
  const FusedOutputs outputs = expect_fault(args, "slot_out_of_range", "slot_mapping", 2, 96);
  expect_caches_without_row(args, 2);
  EXPECT_TRUE(is_same_bits(outputs.q_out, good.q_out));  // rotated all the same
  EXPECT_TRUE(is_same_bits(outputs.k_out, good.k_out));
}

TEST_F(CudaFault, SlotOfAKvOnlyRowOutOfRange) {
  FusedArguments args = small_call(kOptions);
  args.slot_mapping[5] = int64_t{1} << 40;
  expect_fault(args, "slot_out_of_range", "slot_mapping", 5, int64_t{1} << 40);
  expect_caches_without_row(args, 5);
}

TEST_F(CudaFault, WindowSlotOutOfRange) {
  FusedArguments args = small_call(kOptions);
  at::Tensor window = at::arange(96, at::kLong);
  window[95] = 1000;
  args.swa_slot_mapping = window.to(kDevice);
  expect_fault(args, "window_slot_out_of_range", "swa_slot_mapping", 2, 1000);
  expect_caches_without_row(args, 2);
}

TEST_F(CudaFault, SlotPastTheWindowTable) {
  FusedArguments args = small_call(kOptions);
  args.swa_slot_mapping = at::arange(95, at::kLong).to(kDevice);
  expect_fault(args, "slot_out_of_range", "slot_mapping", 2, 95);
  expect_caches_without_row(args, 2);
}

TEST_F(CudaFault, SlotsWithAnEmptyWindowTable) {
  FusedArguments args = small_call(kOptions);
  const at::Tensor key_cache = args.key_cache.clone();
  args.slot_mapping = integers({-1, 3}, kOptions);
  args.swa_slot_mapping = integers({}, kOptions);
  expect_fault(args, "slot_out_of_range", "slot_mapping", 1, 3);
  EXPECT_TRUE(is_same_bits(args.key_cache, key_cache));
}

TEST_F(CudaFault, PositionOutOfRangeGivesNan) {
  const FusedOutputs good = fused_qk_rope_reshape_and_cache(small_call(kOptions));
  for (const int64_t position : {int64_t{-1}, kPositions}) {
    FusedArguments args = small_call(kOptions);
    args.pos[3] = position;
    const FusedOutputs outputs = expect_fault(args, "position_out_of_range", "pos", 3, position);
    expect_caches_without_row(args, 3);
    EXPECT_TRUE(outputs.q_out[3].isnan().all().item<bool>());
    EXPECT_TRUE(outputs.k_out[3].isnan().all().item<bool>());
    for (const int64_t row : {0, 1, 2, 4}) {
      EXPECT_TRUE(is_same_bits(outputs.q_out[row], good.q_out[row])) << "row " << row;
      EXPECT_TRUE(is_same_bits(outputs.k_out[row], good.k_out[row])) << "row " << row;
    }
  }
}

TEST_F(CudaFault, TheFirstFaultIsKept) {
  FusedArguments first = small_call(kOptions), second = small_call(kOptions);
  first.slot_mapping[0] = 500;
  second.pos[4] = -9;
  fused_qk_rope_reshape_and_cache(first);
  expect_fault(second, "slot_out_of_range", "slot_mapping", 0, 500);
}

TEST(CpuFault, ThereNeverIsOne) {
  EXPECT_FALSE(last_fault(at::kCPU));
  EXPECT_NO_THROW(check(at::kCPU));
  EXPECT_THROW(last_fault(at::kMeta), c10::ValueError);
  EXPECT_THROW(check(at::kMeta), c10::ValueError);
}

}  // namespace
}  // namespace kvrope
