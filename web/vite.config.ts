import { defineConfig } from "vite";

// Relative addresses, so that the page works below any path of an embedder. Files in `assets` have their
// digest in their names, and are kept by browsers for good.
export default defineConfig({
  base: "./",
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
  build: {
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: false,
    reportCompressedSize: false,
    rollupOptions: {
      output: {
        entryFileNames: "assets/app-[hash].js",
        chunkFileNames: "assets/[name]-[hash].js",
        assetFileNames: "assets/app-[hash].[ext]",
      },
    },
  },
  // `npm run dev` beside a `logreel serve`.
  server: { proxy: { "/v1": "http://127.0.0.1:7717" } },
});
