// The engine step: random schedules whose every output is right, faults that harm nobody else, and mistakes
// planted on purpose, which it must see. Names say gpu, not cuda: sanitizers turn torch's memory cache off,
// without which no graph can be captured.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "engine_step/run.h"
#include "engine_step/workload.h"
#include "fault.h"

namespace kvrope::engine {
namespace {

testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << part << "\" is not in:\n" << text;
}

struct Place {
  std::string name;
  c10::Device device;
};
void PrintTo(const Place& place, std::ostream* out) {
  *out << place.name;
}
const Place kPlaces[] = {{"cpu", at::kCPU}, {"gpu", c10::Device(at::kCUDA, 0)}};

template <typename Test>
std::string place_name(const testing::TestParamInfo<Test>& info) {
  return info.param.name;
}

struct Served {
  std::string name;
  at::ScalarType dtype;
  std::string kv_cache_dtype;
  bool is_neox = true;
  int64_t block_size = 8, steps = 300;
};
void PrintTo(const Served& served, std::ostream* out) {
  *out << served.name;
}

class EngineServes : public testing::TestWithParam<std::tuple<Place, Served>> {};

TEST_P(EngineServes, EveryTokenAndEveryBlock) {
  const auto& [place, served] = GetParam();
  if (place.device.is_cuda() && !at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  RunOptions options;
  options.device = place.device;
  options.steps = served.steps;
  options.model.dtype = served.dtype;
  options.model.kv_cache_dtype = served.kv_cache_dtype;
  options.model.is_neox = served.is_neox;
  options.scheduler.block_size = served.block_size;
  options.scheduler.num_blocks = options.scheduler.num_blocks * 8 / served.block_size;
  options.scheduler.num_window_blocks = options.scheduler.num_window_blocks * 8 / served.block_size;
  const Statistics s = serve(options);
  EXPECT_EQ(s.num_complaints, 0) << report(options, s);
  EXPECT_EQ(s.num_mismatches, 0);
  EXPECT_LE(s.largest_error, kTolerance);
  EXPECT_EQ(s.dropped, 0);
  // The schedule had all that it is for.
  for (const int64_t count :
       {s.decode_steps, s.mixed_steps, s.prefill_tokens, s.decode_tokens, s.padding_rows, s.shared_tokens,
        s.preemptions, s.finished, s.window_evictions}) {
    EXPECT_GT(count, 10) << report(options, s);
  }
  if (place.device.is_cuda()) {
    EXPECT_GE(s.graph_replays, s.decode_steps);
    EXPECT_GE(s.graphs, 3);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Devices, EngineServes,
    testing::Combine(testing::ValuesIn(kPlaces),
                     testing::Values(Served{"bf16", at::kBFloat16, "auto"},
                                     Served{"bf16_e4m3", at::kBFloat16, "fp8_e4m3", true, 8, 200},
                                     Served{"fp16_e5m2_gptj", at::kHalf, "fp8_e5m2", false, 8, 200},
                                     Served{"fp32_blocks_of_5", at::kFloat, "auto", true, 5})),
    [](const auto& info) { return std::get<0>(info.param).name + "_" + std::get<1>(info.param).name; });

class EngineStep : public testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    if (GetParam().device.is_cuda() && !at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
    options.device = GetParam().device;
    options.steps = 40;
    options.seed = 2;
  }

  // In steps of this kind, the numbers are changed by `tamper` (which says whether it has found what to
  // change), until it has once.
  Statistics serve_with(const std::function<bool(StepRows&)>& tamper) {
    bool is_done = false;
    Statistics s = serve(options, [&](Engine& engine) {
      if (engine.tamper) return;
      engine.tamper = [&](StepRows& rows) { is_done = is_done || tamper(rows); };
    });
    EXPECT_TRUE(is_done) << "no step had what the test needs";
    return s;
  }

  RunOptions options;
};

INSTANTIATE_TEST_SUITE_P(Devices, EngineStep, testing::ValuesIn(kPlaces), place_name<Place>);

// A row of a step whose batch has several requests, and the value that it is given.
struct PlantedFault {
  int64_t value;
  int64_t row = -1;
  RequestPtr request = nullptr;
};

bool plant(StepRows& rows, std::vector<int64_t>& values, PlantedFault& fault) {
  if (rows.chunks.size() < 3) return false;
  fault.row = rows.chunks[0].count;  // the first row of the second request
  fault.request = rows.chunks[1].request;
  values[static_cast<size_t>(fault.row)] = fault.value;
  return true;
}

void expect_fault(const Statistics& s, const PlantedFault& fault, const std::string& argument,
                  c10::Device device) {
  ASSERT_EQ(s.fault_texts.size(), 1u);
  const std::string row = std::to_string(fault.row), value = std::to_string(fault.value);
  EXPECT_TRUE(contains(s.fault_texts[0], device.is_cuda()
                                             ? argument + " gives " + value + " for row " + row + ":"
                                             : argument + "[" + row + "] is " + value + ", expected"));
  EXPECT_EQ(s.dropped, 1);
  EXPECT_TRUE(fault.request->blocks.empty());
  EXPECT_GT(s.finished, 10);  // all others, with all outputs as they should be and all blocks back
  EXPECT_EQ(s.complaints, std::vector<std::string>{});
  EXPECT_FALSE(kvrope::last_fault(device));
}

TEST_P(EngineStep, ASlotBeyondTheCacheCostsItsRequestAlone) {
  for (const int64_t value : {options.scheduler.num_slots(), int64_t{1} << 40}) {
    PlantedFault fault{value};
    const Statistics s = serve_with([&](StepRows& rows) { return plant(rows, rows.slots, fault); });
    expect_fault(s, fault, "slot_mapping", options.device);
  }
}

TEST_P(EngineStep, APositionBeyondTheTableCostsItsRequestAlone) {
  for (const int64_t value : {options.scheduler.max_length, int64_t{-1}, int64_t{1} << 40}) {
    PlantedFault fault{value};
    const Statistics s = serve_with([&](StepRows& rows) { return plant(rows, rows.positions, fault); });
    expect_fault(s, fault, "pos", options.device);
  }
}

TEST_P(EngineStep, FaultsInStepsOfDecodeAlone) {  // on the GPU: replays of a graph
  for (const bool is_slot : {true, false}) {
    PlantedFault fault{12345};
    const Statistics s = serve_with([&](StepRows& rows) {
      return rows.is_decode && plant(rows, is_slot ? rows.slots : rows.positions, fault);
    });
    expect_fault(s, fault, is_slot ? "slot_mapping" : "pos", options.device);
  }
}

TEST_P(EngineStep, ManyFaultsOneAfterTheOther) {
  for (const char* kind : {"slot", "position"}) {
    options.inject = kind;
    options.steps = 100;
    const Statistics s = serve(options);
    EXPECT_GT(s.dropped, 3);
    EXPECT_EQ(s.dropped, static_cast<int64_t>(s.fault_texts.size()));
    EXPECT_EQ(s.num_complaints, 0) << report(options, s);
  }
}

// What must be seen: outputs that are not those of the sequence.
void expect_seen(const RunOptions& options, const Statistics& s) {
  EXPECT_GT(s.num_mismatches, 0);
  EXPECT_GT(s.largest_error, 100 * kTolerance);
  EXPECT_TRUE(contains(report(options, s), "attention differs by"));
  EXPECT_TRUE(contains(report(options, s), "\nfailed: "));
}

TEST_P(EngineStep, AWrongBlockInATableIsSeen) {
  const int64_t columns = options.scheduler.max_blocks();
  expect_seen(options, serve_with([&](StepRows& rows) {
                if (rows.chunks.size() < 2 || rows.chunks[0].first < 8 || rows.chunks[1].first < 8)
                  return false;
                // The first request's first block becomes the second's.
                const auto second = static_cast<size_t>(rows.chunks[0].count * columns);
                const bool differ = rows.tables[0] != rows.tables[second];
                rows.tables[0] = rows.tables[second];
                return differ;
              }));
}

TEST_P(EngineStep, AWriteIntoABlockOfAnotherIsSeen) {
  expect_seen(options, serve_with([&](StepRows& rows) {
                if (rows.num_padding == 0 || rows.chunks[0].first < 8) return false;
                // A padding row writes where the first request's first token is.
                rows.slots.back() = rows.tables[0] * options.scheduler.block_size;
                return true;
              }));
}

TEST_P(EngineStep, ASlotOfANeighbourIsSeen) {
  expect_seen(options, serve_with([](StepRows& rows) {
                if (rows.chunks.size() < 2) return false;
                std::swap(rows.slots[0], rows.slots[static_cast<size_t>(rows.chunks[0].count)]);
                return true;
              }));
}

TEST_P(EngineStep, APositionOffByOneIsSeen) {
  expect_seen(options, serve_with([](StepRows& rows) {
                if (rows.chunks[0].first < 2) return false;
                --rows.positions[0];
                return true;
              }));
}

TEST_P(EngineStep, AWrongWindowTableIsSeen) {
  expect_seen(options, serve_with([&](StepRows& rows) {
                if (rows.chunks.size() < 2 || rows.slots[0] < 0) return false;
                auto& mapped = rows.window_table[static_cast<size_t>(rows.slots[0])];
                mapped = -1;  // as if the block were evicted: the row is not cached
                return true;
              }));
}

TEST_P(EngineStep, AWrongScaleOfOneHeadIsSeen) {
  options.model.kv_cache_dtype = "fp8_e4m3";
  expect_seen(options, serve(options, [](Engine& engine) {
                if (engine.statistics().steps == 10) engine.model().layers[0].v_scale[1] *= 1.25;
              }));
}

TEST_P(EngineStep, AFreedBlockThatIsStillInUseIsSeen) {
  Engine engine(options.scheduler, options.model, options.seed, options.device);
  Workload workload(options.seed, options.model.vocabulary, options.scheduler.max_length);
  while (engine.scheduler().running().size() < 3) {
    for (const RequestPtr& request : workload.arrivals()) engine.submit(request);
    engine.step();
  }
  EXPECT_EQ(engine.statistics().num_complaints, 0);
  const int64_t block = engine.scheduler().running()[0]->blocks.back();
  engine.scheduler().blocks().release(block);
  engine.audit();
  ASSERT_FALSE(engine.statistics().complaints.empty());
  EXPECT_EQ(engine.statistics().complaints[0],
            "full block " + std::to_string(block) + ": 0 references, held by 1 requests");
}

TEST_P(EngineStep, ALostBlockIsSeenAtTheEnd) {
  const Statistics s = serve(options, [](Engine& engine) {
    if (engine.statistics().steps == 20) engine.scheduler().blocks().allocate();
  });
  EXPECT_TRUE(contains(report(options, s), "1 references, held by 0 requests"));
}

// With the rest lost too, no request ever runs again: the run ends all the same.
TEST_P(EngineStep, LostBlocksThatNobodyCanDoWithoutEndTheRun) {
  const Statistics s = serve(options, [](Engine& engine) {
    if (engine.statistics().steps > 20 && engine.scheduler().blocks().num_free() > 0) {
      engine.scheduler().blocks().allocate();
    }
  });
  EXPECT_GT(s.num_complaints, 0);
  EXPECT_LT(s.steps, 1000);
}

TEST(EngineReport, SaysWhatWasDone) {
  RunOptions options;
  options.steps = 5;
  Statistics s = serve(options);
  EXPECT_TRUE(contains(report(options, s), "\npassed\n"));
  s.complaints = {"what is wrong"};
  s.num_complaints = 1;
  EXPECT_TRUE(contains(report(options, s), "\nwhat is wrong\nfailed: 1 complaints\n"));
}

}  // namespace
}  // namespace kvrope::engine
