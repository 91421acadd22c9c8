// The bytes that a call must move, and how many calls and sets of buffers an L2 state asks for.
#include "runner/call_bytes.h"
#include "runner/call_flops.h"

#include <gtest/gtest.h>

#include "runner/case_file.h"
#include "runner/l2_state.h"

namespace kvrope::regress {
namespace {

CaseSpec only_case(const std::string& keys) {
  return parse_case_file(R"({"schema_version": 1, "cases": [{"id": "a", )" + keys + "}]}", "test.json").at(0);
}

CallBytes bytes_of_case(const std::string& keys) {
  CaseSpec spec = only_case(keys);
  return call_bytes(spec, plan_rows(spec));
}

const char* kLlama = R"("num_tokens": 4, "q_heads": 32, "kv_heads": 8, "head_dim": 128)";

TEST(CallBytes, InputsOutputsCachedRowsTableRowsAndIndices) {
  CallBytes bytes = bytes_of_case(kLlama);
  EXPECT_EQ(bytes.rows_read, 4 * (32 + 8 + 8) * 128 * 2);
  EXPECT_EQ(bytes.rows_written, 4 * (32 + 8 + 8 + 8) * 128 * 2);
  EXPECT_EQ(bytes.indices, 4 * (8 + 8) + 4 * 128 * 4);
  EXPECT_EQ(bytes.all(), bytes.rows() + bytes.indices);
}

TEST(CallBytes, Fp8CachesTakeHalfAndPaddingTakesNone) {
  std::string fp8 = std::string(kLlama) + R"(, "kv_cache_dtype": "fp8_e4m3")";
  EXPECT_EQ(bytes_of_case(fp8).rows_written, 4 * (32 + 8) * 128 * 2 + 4 * 16 * 128);
  std::string padded = std::string(kLlama) + R"(, "slots": {"padding": [1, 2]})";
  EXPECT_EQ(bytes_of_case(padded).rows_written, 4 * (32 + 8) * 128 * 2 + 2 * 16 * 128 * 2);
  EXPECT_EQ(bytes_of_case(padded).rows_read, 4 * (32 + 8) * 128 * 2 + 2 * 8 * 128 * 2);
}

TEST(CallBytes, ATableRowCountsOnce) {
  std::string same = std::string(kLlama) + R"(, "positions": {"values": [5, 5, 5, 9], "dtype": "int32"},
                                               "table_dtype": "bf16", "table": {"width": "full"})";
  EXPECT_EQ(bytes_of_case(same).indices, 4 * (4 + 8) + 2 * 256 * 2);
}

TEST(CallBytes, OffsetsAndWindowTablesAreRead) {
  std::string keys = std::string(kLlama) + R"(, "positions": {"offsets": {"value": 3, "dtype": "int32"}},
                                               "slots": {"swa": {"evicted": 0.5, "dtype": "int32"}})";
  CallBytes bytes = bytes_of_case(keys);
  EXPECT_EQ(bytes.indices, 4 * (8 + 8 + 4 + 4) + 4 * 128 * 4);
  EXPECT_EQ(bytes.rows_written, 4 * (32 + 8) * 128 * 2 + 2 * 16 * 128 * 2);
}

TEST(CallBytes, InPlaceOnlyWhatIsRotatedIsRewritten) {
  std::string keys = std::string(kLlama) + R"(, "rotary_dim": 32, "inputs": {"in_place": true})";
  CallBytes bytes = bytes_of_case(keys);
  EXPECT_EQ(bytes.rows_written, 4 * (32 + 8) * 32 * 2 + 4 * 16 * 128 * 2);
  EXPECT_EQ(bytes.rows_read, 4 * 32 * 32 * 2 + 4 * (8 + 8) * 128 * 2);
}

TEST(CallBytes, InPlaceNormsRewriteWholeHeadsAndTheirWeightsAreRead) {
  const std::string in_place = std::string(kLlama) + R"(, "rotary_dim": 32, "inputs": {"in_place": true})";
  const CallBytes without = bytes_of_case(in_place);
  const CallBytes both = bytes_of_case(in_place + R"(, "norm": {"weight_dtype": "fp32"})");
  EXPECT_EQ(both.rows_written, 4 * (32 + 8 + 16) * 128 * 2);
  EXPECT_EQ(both.rows_read, 4 * (32 + 8 + 8) * 128 * 2);
  EXPECT_EQ(both.indices, without.indices + 2 * 128 * 4);
  const CallBytes keys = bytes_of_case(in_place + R"(, "norm": {"q": false})");
  EXPECT_EQ(keys.rows_written, without.rows_written + 4 * 8 * 96 * 2);
  EXPECT_EQ(keys.indices, without.indices + 128 * 2);
}

TEST(CallBytes, KvOnlyRowsAndZeros) {
  std::string keys =
      std::string(kLlama) + R"(, "num_kv_rows": 6, "num_slots": 6, "outputs": {"zeros_out": true})";
  CallBytes bytes = bytes_of_case(keys);
  EXPECT_EQ(bytes.rows_read, 2 * 128 * (4 * 32 + 6 * 16));
  EXPECT_EQ(bytes.rows_written, 2 * 128 * (4 * 32 + 6 * 8 + 4 * 32 + 6 * 16));
}

// Rows 5 and 9 of axis 0, row 7 of axis 1, rows 1 to 4 of axis 2: of each the columns of its frequencies.
TEST(CallBytes, OfATableRowOnlyTheFrequenciesOfItsAxis) {
  const std::string positions =
      std::string(kLlama) + R"(, "positions": {"values": [[5, 5, 5, 9], [7, 7, 7, 7], [1, 2, 3, 4]]})";
  const std::string section = positions + R"(, "mrope": {"section": [16, 40, 8]})";
  EXPECT_EQ(bytes_of_case(section).indices, 4 * (3 * 8 + 8) + 4 * 2 * (2 * 16 + 1 * 40 + 4 * 8));
  // Of 64 frequencies those with 1 modulo 3 are 21, and 40 would be more; those with 2 below 24 are 8.
  const std::string interleaved = positions + R"(, "mrope": {"section": [16, 40, 8], "interleaved": true})";
  EXPECT_EQ(bytes_of_case(interleaved).indices, 4 * (3 * 8 + 8) + 4 * 2 * (2 * 35 + 1 * 21 + 4 * 8));
  const std::string one_axis =
      std::string(kLlama) + R"(, "positions": {"axes": 1}, "mrope": {"section": [16, 40, 8]})";
  EXPECT_EQ(bytes_of_case(one_axis).indices, bytes_of_case(kLlama).indices);
}

TEST(CallBytes, Fp8QueriesTakeAByteAnElement) {
  const std::string fp8 =
      std::string(kLlama) + R"(, "q_out_dtype": "fp8_e4m3", "outputs": {"zeros_out": true})";
  EXPECT_EQ(bytes_of_case(fp8).rows_written, 4 * 128 * (32 * 1 + 32 * 2 + (8 + 16) * 2));
  // In place is k alone: all of q is read and written.
  const std::string in_place =
      std::string(kLlama) + R"(, "q_out_dtype": "fp8_e4m3", "rotary_dim": 32, "inputs": {"in_place": true})";
  EXPECT_EQ(bytes_of_case(in_place).rows_written, 4 * (32 * 128 + 8 * 32 * 2 + 16 * 128 * 2));
  EXPECT_EQ(bytes_of_case(in_place).rows_read, 4 * 2 * 128 * (32 + 8 + 8));
  const std::string scaled = std::string(kLlama) + R"(, "q_out_dtype": "fp8_e4m3", "scales": {"q": 0.5})";
  EXPECT_EQ(call_flops(only_case(scaled)), call_flops(only_case(kLlama)) + 4 * 32 * 128);
}

int64_t partial_sectors(const std::string& keys) {
  CaseSpec spec = only_case(R"("kv_heads": 2, "head_dim": 64, "block_size": 16, )" + keys);
  if (keys.find("layout") == std::string::npos) spec.layout = Layout::x_split;
  return partial_value_sectors(spec, plan_rows(spec));
}

TEST(CallBytes, SectorsOfXSplitValuesThatAreWrittenInPart) {
  EXPECT_EQ(partial_sectors(R"("num_tokens": 32)"), 0);  // two whole blocks of bf16: a sector a block
  EXPECT_EQ(partial_sectors(R"("num_tokens": 33)"), 2 * 64);
  EXPECT_EQ(partial_sectors(R"("slots": {"values": [0, 16, 17, 40, -1]}, "num_tokens": 5)"), 3 * 2 * 64);
  EXPECT_EQ(partial_sectors(R"("num_tokens": 16, "dtype": "fp32", "slots": {"start": 4})"), 2 * 2 * 64);
  EXPECT_EQ(partial_sectors(R"("num_tokens": 16, "dtype": "fp32", "slots": {"padding": [3, 4]})"), 2 * 64);
  EXPECT_EQ(partial_sectors(R"("slots": {"values": [0, 16, 1, 17]}, "num_tokens": 4)"), 4 * 2 * 64);
  EXPECT_EQ(partial_sectors(R"("num_tokens": 1, "layout": "x_split_shuffle")"), 0);
}

constexpr int64_t kMega = 1'000'000, kPlenty = 100'000 * kMega;

TEST(L2State, TagsSayIt) {
  EXPECT_EQ(l2_states_of(only_case(R"("num_tokens": 1)")), std::vector<L2State>{L2State::warm});
  EXPECT_EQ(l2_states_of(only_case(R"("tags": ["rotating", "decode", "warm"])")),
            (std::vector<L2State>{L2State::warm, L2State::rotating}));
}

TEST(L2State, WarmIsOneSetAndFlushedOneACall) {
  EXPECT_EQ(plan_calls(L2State::warm, kMega, kMega, kPlenty).sets, 1);
  CallGroup flushed = plan_calls(L2State::flushed, kMega, kMega, kPlenty);
  EXPECT_EQ(flushed.sets, 20);
  EXPECT_EQ(flushed.calls, 20);
  CallGroup short_of_memory = plan_calls(L2State::flushed, kMega, kMega, 3 * kMega);
  EXPECT_EQ(short_of_memory.sets, 3);
  EXPECT_EQ(short_of_memory.calls, 3);
}

TEST(L2State, RotatingSetsMoveMoreThan600Megabytes) {
  for (int64_t moved : {2 * kMega, 7 * kMega, 109 * kMega, 440 * kMega, 2000 * kMega}) {
    CallGroup group = plan_calls(L2State::rotating, moved, 2 * moved, kPlenty);
    EXPECT_GT(group.sets * moved, 600 * kMega) << moved;
    EXPECT_GE(group.sets, 2);
    EXPECT_GE(group.calls, 20);
    EXPECT_EQ(group.calls % group.sets, 0);
  }
}

TEST(L2State, RotatingSetsFitTheMemory) {
  EXPECT_EQ(plan_calls(L2State::rotating, kMega, 10 * kMega, 100 * kMega).sets, 10);
  EXPECT_EQ(plan_calls(L2State::rotating, kMega, 10 * kMega, kMega).sets, 1);
  EXPECT_EQ(plan_calls(L2State::rotating, 1000, 1000, kPlenty).sets, 512);
  EXPECT_EQ(plan_calls(L2State::rotating, 0, 0, kPlenty).sets, 512);  // no rows
}

}  // namespace
}  // namespace kvrope::regress
