#include "runner/npy_file.h"

#include <fstream>
#include <stdexcept>
#include <string>

namespace kvrope::regress {
namespace {

const char* dtype_name(float) {
  return "<f4";
}
const char* dtype_name(double) {
  return "<f8";
}
const char* dtype_name(int64_t) {
  return "<i8";
}
const char* dtype_name(uint8_t) {
  return "|u1";
}

// Magic and version, the length of the rest, and a Python dictionary that ends in a newline at a multiple
// of 64.
std::string header(const char* dtype, const std::vector<int64_t>& shape) {
  std::string sizes;
  for (int64_t size : shape) sizes += std::to_string(size) + ",";
  std::string text =
      std::string("{'descr': '") + dtype + "', 'fortran_order': False, 'shape': (" + sizes + "), }";
  constexpr size_t kBefore = 10;
  text.append(63 - (kBefore + text.size()) % 64, ' ');
  text += '\n';
  std::string start = "\x93NUMPY\x01";
  start += '\0';
  start += static_cast<char>(text.size() & 0xff);
  start += static_cast<char>(text.size() >> 8);
  return start + text;
}

}  // namespace

template <class Value>
void write_npy(const std::filesystem::path& path, const std::vector<int64_t>& shape,
               const std::vector<Value>& values) {
  std::ofstream file(path, std::ios::binary);
  std::string start = header(dtype_name(Value()), shape);
  file.write(start.data(), static_cast<std::streamsize>(start.size()));
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(Value)));
  file.close();
  if (!file) throw std::runtime_error(path.string() + ": cannot be written");
}

template void write_npy(const std::filesystem::path&, const std::vector<int64_t>&, const std::vector<float>&);
template void write_npy(const std::filesystem::path&, const std::vector<int64_t>&,
                        const std::vector<double>&);
template void write_npy(const std::filesystem::path&, const std::vector<int64_t>&,
                        const std::vector<int64_t>&);
template void write_npy(const std::filesystem::path&, const std::vector<int64_t>&,
                        const std::vector<uint8_t>&);

}  // namespace kvrope::regress
