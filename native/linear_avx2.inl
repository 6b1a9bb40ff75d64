// What the two 256-bit instruction sets share; included inside an unnamed namespace.
struct Avx2Base {
    using Bytes = __m256i;
    using Ints = __m256i;
    using Floats = __m256;
    static constexpr std::size_t lanes = 8, panel_columns = 2, panel_rows = 4;

    static Bytes load_bytes(const std::uint8_t *p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)); }
    static void store_bytes(std::uint8_t *p, Bytes v) { _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), v); }
    static Bytes mask(Bytes v, int byte) { return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(byte))); }
    // Shifts of 16 bits: what crosses into the neighbouring byte is masked away by the caller.
    template <int n>
    static Bytes left(Bytes v) {
        return _mm256_slli_epi16(v, n);
    }
    template <int n>
    static Bytes right(Bytes v) {
        return _mm256_srli_epi16(v, n);
    }
    // Bits of `a` where `byte` has ones, else of `b`.
    template <int byte>
    static Bytes select(Bytes a, Bytes b) {
        const __m256i ones = _mm256_set1_epi8(static_cast<char>(byte));
        return _mm256_or_si256(_mm256_and_si256(ones, a), _mm256_andnot_si256(ones, b));
    }

    static Bytes either(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }

    static Floats zero() { return _mm256_setzero_ps(); }
    static Floats load(const float *p) { return _mm256_loadu_ps(p); }
    static void store(float *p, Floats v) { _mm256_storeu_ps(p, v); }
    static Floats load_halves(const std::uint8_t *p) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
    }
    static Floats load_unsigned(const std::uint8_t *p) {
        return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))));
    }
    static Floats load_signed(const std::uint8_t *p) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))));
    }
    static Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
    static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
    static Floats subtract_product(Floats a, const float &b, Floats c) {
        return _mm256_fnmadd_ps(a, _mm256_set1_ps(b), c);
    }

    static Ints broadcast(std::int32_t v) { return _mm256_set1_epi32(v); }
    static Ints broadcast_pair(const std::int16_t *pair) {
        std::int32_t both;
        __builtin_memcpy(&both, pair, sizeof both);
        return _mm256_set1_epi32(both);
    }
    static Ints broadcast4(const std::int8_t *q) {
        std::int32_t four;
        __builtin_memcpy(&four, q, sizeof four);
        return _mm256_set1_epi32(four);
    }
    static Floats scale_sum(Ints v, const ActivationGroup &row) {
        return _mm256_fmsub_ps(_mm256_castsi256_ps(v), _mm256_set1_ps(row.scale), _mm256_set1_ps(row.scaled_magic));
    }
};
