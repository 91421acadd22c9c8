// Whether strided tensors share elements: thousands of small ones against enumeration, the views that engines
// make, and tensors too large to enumerate.
#include "overlap.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <ostream>
#include <random>
#include <string>
#include <vector>

namespace kvrope {

void PrintTo(const StridedBytes& bytes, std::ostream* out) {
  *out << "begin " << bytes.begin << " item " << bytes.item_size << (bytes.is_empty ? " empty" : "");
  for (const Axis& axis : bytes.axes) *out << " [" << axis.size << " x " << axis.stride << ']';
}

namespace {

// The first byte of every element, one entry an index.
std::vector<int64_t> element_addresses(const StridedBytes& bytes) {
  if (bytes.is_empty) return {};
  std::vector<int64_t> addresses = {bytes.begin};
  for (const Axis& axis : bytes.axes) {
    std::vector<int64_t> next;
    for (const int64_t address : addresses) {
      for (int64_t i = 0; i < axis.size; ++i) next.push_back(address + i * axis.stride);
    }
    addresses.swap(next);
  }
  return addresses;
}

std::vector<int64_t> touched_bytes(const StridedBytes& bytes) {
  std::vector<int64_t> touched;
  for (const int64_t address : element_addresses(bytes)) {
    for (int64_t i = 0; i < bytes.item_size; ++i) touched.push_back(address + i);
  }
  std::sort(touched.begin(), touched.end());
  return touched;
}

bool share_by_enumeration(const StridedBytes& a, const StridedBytes& b) {
  const std::vector<int64_t> of_a = touched_bytes(a), of_b = touched_bytes(b);
  return std::any_of(of_a.begin(), of_a.end(),
                     [&](int64_t byte) { return std::binary_search(of_b.begin(), of_b.end(), byte); });
}

bool overlaps_by_enumeration(const StridedBytes& a) {
  const std::vector<int64_t> touched = touched_bytes(a);
  return std::adjacent_find(touched.begin(), touched.end()) != touched.end();
}

class RandomArrays {
 public:
  explicit RandomArrays(uint32_t seed) : random_(seed) {}

  StridedBytes draw(int max_axes, int max_size, int max_stride, int max_begin) {
    StridedBytes bytes;
    bytes.item_size = int64_t{1} << below(4);
    bytes.begin = bytes.item_size * below(max_begin);
    bytes.is_empty = below(50) == 0;
    const int num_axes = below(max_axes + 1);
    for (int i = 0; i < num_axes; ++i) {
      bytes.axes.push_back({2 + below(max_size - 1), bytes.item_size * below(max_stride + 1)});
    }
    return bytes;
  }

 private:
  int below(int n) { return static_cast<int>(random_() % n); }
  std::mt19937 random_;
};

TEST(Overlap, PairsAgreeWithEnumeration) {
  RandomArrays random(1);
  int num_sharing = 0;
  constexpr int kRounds = 30000;
  for (int round = 0; round < kRounds; ++round) {
    const int max_stride = round % 2 ? 12 : 60;
    const StridedBytes a = random.draw(4, 4, max_stride, 40), b = random.draw(4, 4, max_stride, 40);
    const bool expected = share_by_enumeration(a, b);
    num_sharing += expected;
    ASSERT_EQ(share_a_byte(a, b), expected)
        << testing::PrintToString(a) << " and " << testing::PrintToString(b);
    ASSERT_EQ(share_a_byte(b, a), expected)
        << testing::PrintToString(b) << " and " << testing::PrintToString(a);
  }
  EXPECT_GT(num_sharing, kRounds / 5);
  EXPECT_LT(num_sharing, kRounds * 4 / 5);
}

TEST(Overlap, SelfOverlapAgreesWithEnumeration) {
  RandomArrays random(2);
  int num_overlapping = 0;
  constexpr int kRounds = 30000;
  for (int round = 0; round < kRounds; ++round) {
    const StridedBytes a = random.draw(4, 5, round % 2 ? 20 : 90, 10);
    const bool expected = overlaps_by_enumeration(a);
    num_overlapping += expected;
    ASSERT_EQ(overlaps_itself(a), expected) << testing::PrintToString(a);
  }
  EXPECT_GT(num_overlapping, kRounds / 5);
  EXPECT_LT(num_overlapping, kRounds * 4 / 5);
}

TEST(Overlap, EndIsOnePastTheLastByte) {
  RandomArrays random(3);
  for (int round = 0; round < 1000; ++round) {
    const StridedBytes a = random.draw(4, 4, 20, 10);
    if (a.is_empty) continue;
    ASSERT_EQ(a.end(), touched_bytes(a).back() + 1) << testing::PrintToString(a);
  }
}

// Strides like those of real views: one dimension's stride is a multiple of another's extent, shifted and
// permuted.
TEST(Overlap, ViewsOfOneBufferAgreeWithEnumeration) {
  std::mt19937 random(4);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  const at::Tensor buffer = at::zeros({6, 4, 4, 8}, at::kHalf);
  const auto random_view = [&] {
    at::Tensor view = buffer;
    for (int64_t dim = 0; dim < 4; ++dim) {
      const int64_t start = below(view.size(dim)) / 2, stop = start + 1 + below(view.size(dim) - start);
      view = view.slice(dim, start, stop, 1 + below(2));
    }
    if (below(2)) view = view.transpose(below(4), below(4));
    return view.stride(3) == 1 && below(2) == 0 ? view.view(at::kByte) : view;
  };
  int num_sharing = 0;
  for (int round = 0; round < 5000; ++round) {
    const at::Tensor a = random_view(), b = random_view();
    const StridedBytes bytes_a = bytes_of(a), bytes_b = bytes_of(b);
    ASSERT_FALSE(overlaps_itself(bytes_a)) << testing::PrintToString(bytes_a);
    ASSERT_EQ(share_a_byte(bytes_a, bytes_b), share_by_enumeration(bytes_a, bytes_b))
        << testing::PrintToString(bytes_a) << " and " << testing::PrintToString(bytes_b);
    num_sharing += share_a_byte(bytes_a, bytes_b);
  }
  EXPECT_GT(num_sharing, 500);
}

bool share(const at::Tensor& a, const at::Tensor& b) {
  const bool shared = share_a_byte(bytes_of(a), bytes_of(b));
  EXPECT_EQ(share_a_byte(bytes_of(b), bytes_of(a)), shared) << "not symmetric";
  return shared;
}
bool self(const at::Tensor& a) {
  return overlaps_itself(bytes_of(a));
}

TEST(Overlap, ViewsOfOneFusedQkvBuffer) {
  const int64_t q_heads = 8, kv_heads = 2, head_size = 16, tokens = 5;
  const at::Tensor qkv = at::zeros({tokens, (q_heads + 2 * kv_heads) * head_size}, at::kBFloat16);
  const auto heads = [&](int64_t first, int64_t count) {
    return qkv.narrow(1, first * head_size, count * head_size).view({tokens, count, head_size});
  };
  const at::Tensor q = heads(0, q_heads), k = heads(q_heads, kv_heads),
                   v = heads(q_heads + kv_heads, kv_heads);
  for (const at::Tensor& tensor : {q, k, v}) EXPECT_FALSE(self(tensor));
  EXPECT_FALSE(share(q, k));
  EXPECT_FALSE(share(q, v));
  EXPECT_FALSE(share(k, v));
  EXPECT_TRUE(share(q, q));
  EXPECT_TRUE(share(q, heads(q_heads - 1, kv_heads)));  // one head of q
  EXPECT_TRUE(share(k, qkv));
}

TEST(Overlap, KeysAndValuesPackedInOnePage) {
  const at::Tensor pages = at::zeros({4, 16, 2, 2 * 64}, at::kHalf);  // (NB, BS, KH, K|V)
  const at::Tensor keys = pages.narrow(3, 0, 64), values = pages.narrow(3, 64, 64);
  EXPECT_FALSE(share(keys, values));
  EXPECT_TRUE(share(keys, pages.narrow(3, 63, 64)));
  const at::Tensor by_half = at::zeros({2, 4, 16, 2, 64}, at::kHalf);
  EXPECT_FALSE(share(by_half.select(0, 0), by_half.select(0, 1)));
  const at::Tensor by_block = at::zeros({4, 2, 16, 2, 64}, at::kHalf);
  EXPECT_FALSE(share(by_block.select(1, 0), by_block.select(1, 1)));
}

TEST(Overlap, InterleavedElements) {
  const at::Tensor buffer = at::zeros({3, 4, 32}, at::kHalf);
  const at::Tensor even = buffer.slice(2, 0, 32, 2), odd = buffer.slice(2, 1, 32, 2),
                   third = buffer.slice(2, 0, 32, 3);
  EXPECT_FALSE(share(even, odd));
  EXPECT_TRUE(share(odd, third));  // element 3
  EXPECT_FALSE(self(third));
}

TEST(Overlap, HeadsBeforeTokensInMemory) {
  const at::Tensor hnd = at::zeros({2, 4, 2, 16, 64}, at::kHalf);  // (K|V, NB, KH, BS, D)
  const at::Tensor keys = hnd.select(0, 0).permute({0, 2, 1, 3}),
                   values = hnd.select(0, 1).permute({0, 2, 1, 3});
  EXPECT_FALSE(self(keys));
  EXPECT_FALSE(share(keys, values));
  EXPECT_TRUE(share(keys, hnd.select(0, 0)));
}

TEST(Overlap, LayersOfACrossLayerCache) {
  const at::Tensor cache = at::zeros({4, 3, 2, 16, 2, 64}, at::kHalf);  // (NB, layer, K|V, BS, KH, D)
  std::vector<at::Tensor> views;
  for (int64_t layer = 0; layer < 3; ++layer) {
    for (int64_t half = 0; half < 2; ++half) views.push_back(cache.select(1, layer).select(1, half));
  }
  for (size_t i = 0; i < views.size(); ++i) {
    EXPECT_FALSE(self(views[i]));
    for (size_t j = 0; j < views.size(); ++j) EXPECT_EQ(share(views[i], views[j]), i == j) << i << ' ' << j;
  }
}

TEST(Overlap, PagesWithPadding) {
  const at::Tensor storage = at::zeros({4 * 3000}, at::kHalf);
  const auto pages = [&](int64_t offset) {
    return at::as_strided(storage, {4, 16, 2, 64}, {3000, 128, 64, 1}, offset);
  };
  const at::Tensor padding = at::as_strided(storage, {4, 952}, {3000, 1}, 2048);
  EXPECT_FALSE(share(pages(0), padding));
  EXPECT_TRUE(share(pages(1), padding));
}

TEST(Overlap, ExpandedTensorsOverlapThemselves) {
  EXPECT_TRUE(self(at::zeros({1, 64}).expand({5, 64})));
  EXPECT_TRUE(self(at::zeros({5, 1, 64}).expand({5, 2, 64})));
  EXPECT_FALSE(self(at::zeros({1, 64}).expand({1, 64})));
  EXPECT_FALSE(self(at::zeros({1, 64}).expand({0, 64})));
  EXPECT_TRUE(self(at::as_strided(at::zeros({100}), {10, 10}, {9, 1}, 0)));  // a sliding window
  EXPECT_FALSE(self(at::as_strided(at::zeros({100}), {10, 9}, {9, 1}, 0)));
  EXPECT_FALSE(self(at::as_strided(at::zeros({100}), {2, 3}, {3, 2}, 0)));  // 0 2 4 3 5 7
  EXPECT_TRUE(self(at::as_strided(at::zeros({100}), {3, 4}, {3, 2}, 0)));   // 6 twice
}

TEST(Overlap, EmptyTensorsShareNothing) {
  const at::Tensor buffer = at::zeros({4, 8});
  EXPECT_FALSE(share(buffer.narrow(0, 2, 0), buffer));
  EXPECT_FALSE(self(buffer.narrow(0, 2, 0)));
  EXPECT_TRUE(share(buffer.select(0, 0).select(0, 0), buffer));  // a scalar view is one element
}

TEST(Overlap, BytesOfAWiderType) {
  const at::Tensor words = at::zeros({8}, at::kFloat);
  const at::Tensor bytes = words.view(at::kByte);
  EXPECT_TRUE(share(words, bytes.narrow(0, 31, 1)));
  EXPECT_FALSE(share(words.narrow(0, 0, 7), bytes.narrow(0, 28, 4)));
  EXPECT_TRUE(share(words.slice(0, 0, 8, 2), bytes.slice(0, 3, 32, 8)));
  EXPECT_FALSE(share(words.slice(0, 0, 8, 2), bytes.slice(0, 4, 32, 8)));
}

// Caches of a terabyte, of which no element is enumerated.
StridedBytes huge(std::initializer_list<Axis> axes, int64_t begin = 0, int64_t item_size = 2) {
  StridedBytes bytes;
  bytes.begin = (int64_t{1} << 44) + begin;
  bytes.item_size = item_size;
  for (const Axis& axis : axes) bytes.axes.push_back(axis);
  return bytes;
}

class HugeOverlap : public testing::Test {
 protected:
  void TearDown() override {
    const auto spent = std::chrono::steady_clock::now() - start_;
    EXPECT_LT(std::chrono::duration<double>(spent).count(), 0.5);
  }
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

TEST_F(HugeOverlap, PackedKeyAndValuePages) {
  const int64_t head = 128 * 2, page = 784 * 8 * 2 * head, blocks = int64_t{1} << 19;
  const std::initializer_list<Axis> axes = {{blocks, page}, {784, 8 * 2 * head}, {8, 2 * head}, {128, 2}};
  EXPECT_FALSE(share_a_byte(huge(axes), huge(axes, head)));
  EXPECT_TRUE(share_a_byte(huge(axes), huge(axes, head - 2)));
  EXPECT_TRUE(share_a_byte(huge(axes), huge(axes, 5 * page + 2 * head)));
  EXPECT_FALSE(overlaps_itself(huge(axes)));
}

TEST_F(HugeOverlap, HeadsBeforeOffsets) {
  const int64_t head = 128 * 2, page = 16 * 8 * 2 * head, blocks = int64_t{1} << 22;
  const std::initializer_list<Axis> axes = {{blocks, page}, {16, head}, {8, 2 * 16 * head}, {128, 2}};
  EXPECT_FALSE(share_a_byte(huge(axes), huge(axes, 16 * head)));
  EXPECT_TRUE(share_a_byte(huge(axes), huge(axes, 15 * head)));
  EXPECT_FALSE(overlaps_itself(huge(axes)));
}

TEST_F(HugeOverlap, InPlaceRowsOfTwoBillionTokens) {
  const int64_t head = 64 * 2, row = 48 * head, tokens = (int64_t{1} << 31) - 1;
  const std::initializer_list<Axis> q = {{tokens, row}, {32, head}, {64, 2}},
                                    k = {{tokens, row}, {8, head}, {64, 2}};
  EXPECT_FALSE(share_a_byte(huge(q), huge(k, 32 * head)));
  EXPECT_FALSE(share_a_byte(huge(k, 32 * head), huge(k, 40 * head)));
  EXPECT_TRUE(share_a_byte(huge(q), huge(k, 31 * head)));
  EXPECT_TRUE(share_a_byte(huge(k, 40 * head), huge(q, 7 * row - 7 * head)));
}

TEST_F(HugeOverlap, RowsOfDifferentStride) {
  const int64_t rows = 1 << 20;
  const StridedBytes a = huge({{rows, 12288}, {2048, 2}}), b = huge({{rows, 12288 + 512}, {64, 2}}, 8192);
  EXPECT_TRUE(share_a_byte(a, b));
  const StridedBytes c = huge({{rows, 3 * 8192}, {2048, 2}}), d = huge({{rows, 5 * 8192}, {2048, 2}}, 4096);
  EXPECT_FALSE(share_a_byte(c, d));
}

// Strides without order: neither passes over what the other reaches.
TEST_F(HugeOverlap, CoprimeStrides) {
  EXPECT_FALSE(overlaps_itself(huge({{100003, 2 * 100019}, {100019, 2 * 100003}})));
  EXPECT_TRUE(overlaps_itself(huge({{100020, 2 * 100019}, {100020, 2 * 100003}})));
}

TEST_F(HugeOverlap, StrideZeroOfABillion) {
  EXPECT_TRUE(overlaps_itself(huge({{1 << 30, 0}, {128, 2}})));
}

// ---- The check that the operation makes.

std::string error_of(const std::vector<NamedTensor>& written, const std::vector<NamedTensor>& read) {
  try {
    require_no_overlap("operation", written, read, {{"q_out", "q"}, {"k_out", "k"}});
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(RequireNoOverlap, NamesBothTensors) {
  const at::Tensor a = at::zeros({4, 8}), part = a.narrow(0, 1, 2), other = at::zeros({4, 8});
  EXPECT_EQ(error_of({{"key_cache", &a}, {"value_cache", &other}}, {{"q", &other}}),
            "operation: value_cache: expected memory of its own, got elements shared with q");
  EXPECT_EQ(error_of({{"key_cache", &a}, {"value_cache", &part}}, {}),
            "operation: value_cache: expected memory of its own, got elements shared with key_cache");
  EXPECT_EQ(error_of({{"key_cache", &a}}, {{"q", &other}, {"v", &other}}), "");
}

TEST(RequireNoOverlap, InPlaceIsTheSameViewOrNothing) {
  const at::Tensor q = at::zeros({4, 8}), shifted = at::as_strided(q, {4, 7}, {8, 1}, 1),
                   same = q.view({4, 8});
  EXPECT_EQ(error_of({{"q_out", &same}}, {{"q", &q}}), "");
  EXPECT_EQ(error_of({{"q_out", &shifted}}, {{"q", &q}}),
            "operation: q_out: expected memory of its own or exactly that of q, got elements shared with q");
  EXPECT_NE(error_of({{"q_out", &same}}, {{"k", &q}}), "");
  EXPECT_NE(error_of({{"k_out", &same}}, {{"q", &q}}), "");
}

TEST(RequireNoOverlap, TensorsWithoutDataAreJudgedByTheirStorages) {
  const at::TensorOptions meta = at::TensorOptions().device(at::kMeta);
  const at::Tensor a = at::zeros({4, 8}, meta), other = at::zeros({4, 8}, meta), part = a.narrow(0, 1, 2);
  EXPECT_EQ(error_of({{"key_cache", &a}, {"value_cache", &other}}, {}), "");
  EXPECT_EQ(error_of({{"key_cache", &a}, {"value_cache", &part}}, {}),
            "operation: value_cache: expected memory of its own, got elements shared with key_cache");
  const at::Tensor left = a.narrow(1, 0, 4), right = a.narrow(1, 4, 4);
  EXPECT_EQ(error_of({{"key_cache", &left}, {"value_cache", &right}}, {}), "");
  const at::Tensor same = a.view({4, 8}), upper = a.narrow(0, 0, 3), lower = a.narrow(0, 1, 3);
  EXPECT_EQ(error_of({{"q_out", &same}}, {{"q", &a}}), "");
  EXPECT_NE(error_of({{"q_out", &upper}}, {{"q", &lower}}), "");
}

TEST(RequireNoOverlap, WrittenTensorsThatOverlapThemselves) {
  const at::Tensor expanded = at::zeros({1, 8}).expand({4, 8});
  EXPECT_EQ(error_of({{"k_out", &expanded}}, {}),
            "operation: k_out: expected a tensor without elements that share memory, got strides (0, 1) for "
            "shape (4, 8)");
  EXPECT_EQ(error_of({}, {{"k", &expanded}}), "");  // reading one element often is fine
}

}  // namespace
}  // namespace kvrope
