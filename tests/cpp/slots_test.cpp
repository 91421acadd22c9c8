// What slot numbers and positions mean: padding, window table, bounds, 64-bit extremes.
#include "slots.cuh"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "compact_params.h"

namespace kvrope {
namespace {

constexpr int64_t kMin64 = INT64_MIN, kMax64 = INT64_MAX;

template <typename T>
IndexArray index_array(const std::vector<T>& values, int64_t stride = 1) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  const int64_t size = (static_cast<int64_t>(values.size()) + stride - 1) / stride;
  return {values.empty() ? nullptr : values.data(), size, stride * int64_t{sizeof(T)}, sizeof(T) == 8};
}

RopeCacheParams params_with(const IndexArray& slot_mapping, int64_t num_slots) {
  RopeCacheParams params = {};
  params.has_cache = true;
  params.slot_mapping = slot_mapping;
  params.num_slots = num_slots;
  params.block_size = {16};
  return params;
}

void set_window(RopeCacheParams& params, const IndexArray& window) {
  params.swa_slot_mapping = window;
  params.has_swa = true;
}

template <typename Params, typename Index>
void expect_slot_of(const Params& params, Index row, SlotState state, int64_t value) {
  const Slot slot = resolve_slot(params, row);
  EXPECT_EQ(slot.state, state) << "row " << row;
  if (state != SlotState::padding && state != SlotState::no_cache) {
    EXPECT_EQ(slot.value, value) << "row " << row;
  }
  if (params.has_cache) {
    EXPECT_EQ(cache_slot(params, row), state == SlotState::valid ? value : -1) << "row " << row;
  }
}

// Of both forms of the parameters where there are both.
void expect_slot(const RopeCacheParams& params, int64_t row, SlotState state, int64_t value) {
  expect_slot_of(params, row, state, value);
  if (is_compact(params) && row <= INT32_MAX) {
    SCOPED_TRACE("compact");
    expect_slot_of(make_compact(params), static_cast<uint32_t>(row), state, value);
  }
}

void expect_position(const RopeCacheParams& params, int64_t token, int64_t position) {
  EXPECT_EQ(effective_position(params, token, 0), position) << "token " << token;
  if (is_compact(params)) {
    EXPECT_EQ(effective_position(make_compact(params), static_cast<uint32_t>(token), 0), position)
        << "token " << token;
  }
}

template <typename T>
class SlotsTest : public testing::Test {
 protected:
  static constexpr T kMin = std::numeric_limits<T>::min(), kMax = std::numeric_limits<T>::max();
};
using IndexTypes = testing::Types<int32_t, int64_t>;
TYPED_TEST_SUITE(SlotsTest, IndexTypes);

TYPED_TEST(SlotsTest, SlotsAgainstTheCache) {
  const std::vector<TypeParam> slots = {0, 63, 64, -1, this->kMin, this->kMax, 5};
  const RopeCacheParams params = params_with(index_array(slots), 64);
  expect_slot(params, 0, SlotState::valid, 0);
  expect_slot(params, 1, SlotState::valid, 63);
  expect_slot(params, 2, SlotState::slot_out_of_range, 64);
  expect_slot(params, 3, SlotState::padding, 0);
  expect_slot(params, 4, SlotState::padding, 0);
  expect_slot(params, 5, SlotState::slot_out_of_range, this->kMax);
  expect_slot(params, 6, SlotState::valid, 5);
}

TYPED_TEST(SlotsTest, RowsPastTheMappingArePadding) {
  const std::vector<TypeParam> slots = {3, 4};
  const RopeCacheParams params = params_with(index_array(slots), 64);
  expect_slot(params, 1, SlotState::valid, 4);
  expect_slot(params, 2, SlotState::padding, 0);
  expect_slot(params, kMax64, SlotState::padding, 0);
}

TYPED_TEST(SlotsTest, StridedMapping) {
  const std::vector<TypeParam> memory = {1, -7, 99, 2, -7, 99, -1, -7, 99, 70};
  const RopeCacheParams params = params_with(index_array(memory, 3), 64);
  ASSERT_EQ(params.slot_mapping.size, 4);
  expect_slot(params, 0, SlotState::valid, 1);
  expect_slot(params, 1, SlotState::valid, 2);
  expect_slot(params, 2, SlotState::padding, 0);
  expect_slot(params, 3, SlotState::slot_out_of_range, 70);
  expect_slot(params, 4, SlotState::padding, 0);
}

TYPED_TEST(SlotsTest, OneSlotForAllRowsByStrideZero) {
  const TypeParam slot = 9;
  const RopeCacheParams params = params_with({&slot, 4, 0, sizeof(TypeParam) == 8}, 64);
  for (int row = 0; row < 4; ++row) expect_slot(params, row, SlotState::valid, 9);
  expect_slot(params, 4, SlotState::padding, 0);
}

TYPED_TEST(SlotsTest, EmptyMappingIsNeverRead) {
  const RopeCacheParams params = params_with({nullptr, 0, 1, sizeof(TypeParam) == 8}, 64);
  expect_slot(params, 0, SlotState::padding, 0);
  expect_slot(params, 5, SlotState::padding, 0);
}

TYPED_TEST(SlotsTest, EmptyCacheHoldsNoSlot) {
  const std::vector<TypeParam> slots = {0, -1};
  const RopeCacheParams params = params_with(index_array(slots), 0);
  expect_slot(params, 0, SlotState::slot_out_of_range, 0);
  expect_slot(params, 1, SlotState::padding, 0);
}

TYPED_TEST(SlotsTest, WindowTableTranslates) {
  const std::vector<TypeParam> slots = {0, 3, 1, 2, 4, 5};
  const std::vector<TypeParam> window = {10, -1, this->kMin, 63, 64};
  RopeCacheParams params = params_with(index_array(slots), 64);
  set_window(params, index_array(window));
  expect_slot(params, 0, SlotState::valid, 10);
  expect_slot(params, 1, SlotState::valid, 63);
  expect_slot(params, 2, SlotState::padding, 0);  // evicted
  expect_slot(params, 3, SlotState::padding, 0);
  expect_slot(params, 4, SlotState::window_out_of_range, 64);
  expect_slot(params, 5, SlotState::slot_out_of_range, 5);  // past the table
}

// The table's first and last elements stand next to values that must not be read.
TYPED_TEST(SlotsTest, PaddingIsDecidedBeforeTheWindowTableIsRead) {
  const std::vector<TypeParam> slots = {-1, this->kMin, 2, this->kMax};
  const std::vector<TypeParam> memory = {55, 7, 8, 56};
  RopeCacheParams params = params_with(index_array(slots), 64);
  set_window(params, {memory.data() + 1, 2, 1, sizeof(TypeParam) == 8});
  expect_slot(params, 0, SlotState::padding, 0);
  expect_slot(params, 1, SlotState::padding, 0);
  expect_slot(params, 2, SlotState::slot_out_of_range, 2);
  expect_slot(params, 3, SlotState::slot_out_of_range, this->kMax);
}

// A slot may lie beyond the cache as long as the table translates it into the cache.
TYPED_TEST(SlotsTest, WindowTableMayBeLargerThanTheCache) {
  const std::vector<TypeParam> slots = {99};
  std::vector<TypeParam> window(100, -1);
  window[99] = 3;
  RopeCacheParams params = params_with(index_array(slots), 16);
  set_window(params, index_array(window));
  expect_slot(params, 0, SlotState::valid, 3);
}

TYPED_TEST(SlotsTest, StridedWindowTable) {
  const std::vector<TypeParam> slots = {1, 2};
  const std::vector<TypeParam> memory = {4, 99, 5, 99, 64};
  RopeCacheParams params = params_with(index_array(slots), 64);
  set_window(params, index_array(memory, 2));
  expect_slot(params, 0, SlotState::valid, 5);
  expect_slot(params, 1, SlotState::window_out_of_range, 64);
}

// A window table without entries has a null pointer like an absent one, yet every slot lies past it.
TYPED_TEST(SlotsTest, EmptyWindowTableFitsNoSlot) {
  const std::vector<TypeParam> slots = {0, -1};
  RopeCacheParams params = params_with(index_array(slots), 64);
  set_window(params, {nullptr, 0, 1, sizeof(TypeParam) == 8});
  expect_slot(params, 0, SlotState::slot_out_of_range, 0);
  expect_slot(params, 1, SlotState::padding, 0);
}

TEST(Slots, MixedIndexTypes) {
  const std::vector<int32_t> slots = {1};
  const std::vector<int64_t> window = {0, (int64_t{1} << 40) + 1};
  RopeCacheParams params = params_with(index_array(slots), int64_t{1} << 41);
  set_window(params, index_array(window));
  expect_slot(params, 0, SlotState::valid, (int64_t{1} << 40) + 1);
}

TEST(Slots, WithoutACacheNothingIsRead) {
  RopeCacheParams params = params_with({nullptr, 8, 1, true}, 0);
  params.has_cache = false;
  expect_slot(params, 3, SlotState::no_cache, 0);
}

TEST(Slots, LocateIsDivisionWithRemainder) {
  const int64_t two31 = int64_t{1} << 31, two32 = int64_t{1} << 32;
  const std::vector<int64_t> slots = {0,
                                      1,
                                      15,
                                      16,
                                      783,
                                      784,
                                      785,
                                      two31 - 1,
                                      two31,
                                      two32 - 1,
                                      two32,
                                      two32 + 1,
                                      two32 * 784 + 3,
                                      kMax64 - 1,
                                      kMax64};
  for (const int64_t block_size :
       {int64_t{1}, int64_t{16}, int64_t{24}, int64_t{784}, two31 - 1, two32, kMax64}) {
    for (const int64_t slot : slots) {
      const SlotInBlock<int64_t> at = locate(slot, Divisor<int64_t>{block_size});
      ASSERT_EQ(at.block, slot / block_size) << slot << " in blocks of " << block_size;
      ASSERT_EQ(at.offset, slot % block_size) << slot << " in blocks of " << block_size;
      if (slot >= two31 || block_size >= two31) continue;
      const SlotInBlock<uint32_t> compact =
          locate(static_cast<uint32_t>(slot), Divisor<uint32_t>(static_cast<uint32_t>(block_size)));
      ASSERT_EQ(compact.block, at.block) << slot << " in blocks of " << block_size;
      ASSERT_EQ(compact.offset, at.offset) << slot << " in blocks of " << block_size;
    }
  }
}

RopeCacheParams params_with_positions(const IndexArray& pos, const IndexArray& offs, int64_t num_rows) {
  RopeCacheParams params = {};
  params.pos = pos;
  params.offs = offs;
  params.has_offs = offs.size > 0;
  params.cos_sin.num_rows = num_rows;
  return params;
}

TYPED_TEST(SlotsTest, PositionThatDecides) {
  const std::vector<TypeParam> pos = {0, 41, 7, 42, 3, 5, 41, 50, 9, -1, 4, -2};  // (3, T), T = 4
  IndexArray first = index_array(pos);
  first.size = 4;
  RopeCacheParams params = params_with_positions(first, {}, 42);
  params.pos_axis_stride = 4;
  for (const auto& [token, position] : {std::pair(1, -1), std::pair(3, 42)})
    EXPECT_EQ(deciding_position<kNumAxes>(params, int64_t{token}), position) << "token " << token;
  for (const int64_t token : {0, 2})
    EXPECT_TRUE(is_in_table(params, deciding_position<kNumAxes>(params, token))) << "token " << token;
  EXPECT_EQ(deciding_position<1>(params, int64_t{1}), 41);
  EXPECT_EQ(effective_position(params, int64_t{3}, 2), -2);
}

TYPED_TEST(SlotsTest, PositionWithoutOffset) {
  const std::vector<TypeParam> pos = {0, 41, -1, this->kMin, this->kMax};
  const RopeCacheParams params = params_with_positions(index_array(pos), {}, 42);
  for (size_t t = 0; t < pos.size(); ++t) expect_position(params, static_cast<int64_t>(t), pos[t]);
}

TEST(Positions, OffsetIsAddedInSixtyFourBits) {
  const std::vector<int32_t> pos = {INT32_MAX, INT32_MIN, -5, 7};
  const std::vector<int32_t> offs = {INT32_MAX, INT32_MIN, 6, -7};
  const RopeCacheParams params = params_with_positions(index_array(pos), index_array(offs), 10);
  expect_position(params, 0, 2 * int64_t{INT32_MAX});
  expect_position(params, 1, 2 * int64_t{INT32_MIN});
  expect_position(params, 2, 1);
  expect_position(params, 3, 0);
}

TEST(Positions, MixedTypesAndStrides) {
  const std::vector<int32_t> pos = {3, 99, 4, 99};
  const std::vector<int64_t> offs = {int64_t{1} << 40, 9, 9, -4};
  const RopeCacheParams params = params_with_positions(index_array(pos, 2), index_array(offs, 3), 10);
  expect_position(params, 0, (int64_t{1} << 40) + 3);
  expect_position(params, 1, 0);
}

// A sum that leaves 64 bits must not come back into the table from the other side.
TEST(Positions, OverflowStaysOutOfEveryTable) {
  const std::vector<int64_t> pos = {kMax64, kMin64, kMax64, kMin64, kMax64, kMin64, kMin64};
  const std::vector<int64_t> offs = {1, -1, kMax64, kMin64, kMin64, kMax64, kMin64 + 1};
  const std::vector<int64_t> expected = {kMax64, kMin64, kMax64, kMin64, -1, -1, kMin64};
  const RopeCacheParams params = params_with_positions(index_array(pos), index_array(offs), kMax64);
  for (size_t t = 0; t < pos.size(); ++t) {
    expect_position(params, static_cast<int64_t>(t), expected[t]);
    EXPECT_FALSE(is_in_table(params, expected[t])) << pos[t] << " + " << offs[t];
  }
}

TEST(Positions, InTable) {
  const RopeCacheParams params = params_with_positions({}, {}, 42);
  EXPECT_TRUE(is_in_table(params, 0));
  EXPECT_TRUE(is_in_table(params, 41));
  EXPECT_FALSE(is_in_table(params, 42));
  EXPECT_FALSE(is_in_table(params, -1));
  EXPECT_FALSE(is_in_table(params, kMin64));
  EXPECT_FALSE(is_in_table(params, kMax64));
  EXPECT_FALSE(is_in_table(params_with_positions({}, {}, 0), 0));
}

}  // namespace
}  // namespace kvrope
