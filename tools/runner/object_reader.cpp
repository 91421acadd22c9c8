#include "runner/object_reader.h"

#include <algorithm>

namespace kvrope::regress {
namespace {

std::string integer_phrase(int64_t low) {
  if (low == 0) return "a non-negative integer";
  if (low == 1) return "a positive integer";
  return "an integer";
}

std::string number_phrase(double low) {
  if (low == 0) return "a non-negative number";
  if (low == 1) return "a number of at least 1";
  return "a number";
}

}  // namespace

std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned()) {
    uint64_t number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(kAnyInt64)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  double number = value.get<double>();
  if (!(std::fabs(number) < 0x1p53) || std::trunc(number) != number) return std::nullopt;
  return static_cast<int64_t>(number);
}

ObjectReader::ObjectReader(const Json& value, std::string pointer, const std::vector<std::string>& known_keys)
    : object_(&value), pointer_(std::move(pointer)) {
  if (!value.is_object()) throw FileError(pointer_, "must be an object, got " + shown(value));
  for (const auto& item : value.items()) {
    if (std::find(known_keys.begin(), known_keys.end(), item.key()) != known_keys.end()) continue;
    std::string known;
    for (const std::string& key : known_keys) known += (known.empty() ? "" : ", ") + key;
    throw FileError(pointer_to(item.key()), "unknown key, expected one of " + known);
  }
}

const Json* ObjectReader::find(const std::string& key) const {
  auto found = object_->find(key);
  return found == object_->end() ? nullptr : &*found;
}

void ObjectReader::reject(const std::string& key, const std::string& expected) const {
  const Json* value = find(key);
  throw FileError(pointer_to(key),
                  "must be " + expected + (value ? ", got " + shown(*value) : ", is missing"));
}

int64_t ObjectReader::to_integer(const std::string& key, const Json& value, int64_t low, int64_t high) const {
  std::optional<int64_t> integer = as_integer(value);
  if (!integer || *integer < low) reject(key, integer_phrase(low));
  if (*integer > high) reject(key, "at most " + std::to_string(high));
  return *integer;
}

double ObjectReader::to_number(const std::string& key, const Json& value, double low) const {
  if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < low) {
    reject(key, number_phrase(low));
  }
  return value.get<double>();
}

void ObjectReader::boolean(const std::string& key, bool& target) const {
  const Json* value = find(key);
  if (!value) return;
  if (!value->is_boolean()) reject(key, "true or false");
  target = value->get<bool>();
}

void ObjectReader::text(const std::string& key, std::string& target) const {
  const Json* value = find(key);
  if (!value) return;
  if (!value->is_string() || value->get<std::string>().empty()) reject(key, "a non-empty string");
  target = value->get<std::string>();
}

std::vector<int64_t> ObjectReader::to_integers(const std::string& key, const Json& value, int64_t low,
                                               int64_t high) const {
  std::vector<int64_t> integers;
  bool good = value.is_array();
  for (size_t i = 0; good && i < value.size(); ++i) {
    std::optional<int64_t> integer = as_integer(value[i]);
    good = integer && *integer >= low && *integer <= high;
    if (good) integers.push_back(*integer);
  }
  if (!good) {
    std::string limit = high == kAnyInt64 ? "" : " of at most " + std::to_string(high);
    reject(key, "a list, each element " + integer_phrase(low) + limit);
  }
  return integers;
}

std::vector<double> ObjectReader::to_numbers(const std::string& key, const Json& value) const {
  bool good = value.is_array();
  for (size_t i = 0; good && i < value.size(); ++i) good = value[i].is_number();
  if (!good) reject(key, "a list of numbers");
  return value.get<std::vector<double>>();
}

void ObjectReader::texts(const std::string& key, std::vector<std::string>& target) const {
  const Json* value = find(key);
  if (!value) return;
  bool good = value->is_array();
  for (size_t i = 0; good && i < value->size(); ++i) good = (*value)[i].is_string() && (*value)[i] != "";
  if (!good) reject(key, "a list of non-empty strings");
  target = value->get<std::vector<std::string>>();
}

std::optional<ObjectReader> ObjectReader::object(const std::string& key,
                                                 const std::vector<std::string>& known_keys) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  return ObjectReader(*value, pointer_to(key), known_keys);
}

}  // namespace kvrope::regress
