// Arrays as numpy.load reads them (.npy, version 1.0).
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace kvrope::regress {

// Values of float, double, int64_t or uint8_t in C order, as many as the product of the shape. Throws
// std::runtime_error where the file cannot be written.
template <class Value>
void write_npy(const std::filesystem::path& path, const std::vector<int64_t>& shape,
               const std::vector<Value>& values);

}  // namespace kvrope::regress
