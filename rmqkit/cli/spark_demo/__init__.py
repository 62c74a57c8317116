"""`rmqkit demo-spark`: orders stream through a broker into Spark, are summed by window, go back to a topic and to Parquet, and the sums must agree."""
