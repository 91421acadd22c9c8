#include "mrope.cuh"

#include <gtest/gtest.h>

#include <string>

namespace kvrope {
namespace {

std::string axes_of(const MropeSection& section) {
  const FrequencyAxes axes = frequency_axes(section);
  std::string text;
  for (int i = 0; i < section.size[0] + section.size[1] + section.size[2]; ++i)
    text += static_cast<char>('0' + axes.of(i));
  return text;
}

TEST(Mrope, SectionsOneAfterTheOther) {
  EXPECT_EQ(axes_of({{2, 3, 4}, false}), "001112222");
  EXPECT_EQ(axes_of({{0, 0, 2}, false}), "22");
  EXPECT_EQ(axes_of({{3, 0, 1}, false}), "0002");
}

TEST(Mrope, Interleaved) {
  EXPECT_EQ(axes_of({{4, 2, 2}, true}), "01201200");
  EXPECT_EQ(axes_of({{2, 1, 3}, true}), "012002");  // 3 * 3 > 6: width ends with the frequencies
  EXPECT_EQ(axes_of({{3, 0, 0}, true}), "000");
}

TEST(Mrope, AllFrequenciesOfTheLargestHead) {
  const FrequencyAxes axes = frequency_axes({{86, 85, 85}, true});
  for (int i = 0; i < FrequencyAxes::kMaxFrequencies; ++i) {
    ASSERT_EQ(axes.of(i), i % 3) << i;
    ASSERT_EQ(axes.from(i) % 4, static_cast<uint32_t>(i % 3)) << i;
  }
}

}  // namespace
}  // namespace kvrope
