// A cluster of Hadoop in one process: HDFS and YARN, from Hadoop's own test jar.
// Writes the settings for clients into the directory of its argument, and ends with its input.

import java.io.File;
import java.io.FileOutputStream;
import java.io.OutputStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

public class HadoopCluster {
    public static void main(String[] arguments) throws Exception {
        File directory = new File(arguments[0]);
        Configuration conf = new Configuration();
        MiniDFSCluster files =
                new MiniDFSCluster.Builder(conf, new File(directory, "dfs")).numDataNodes(1).build();
        files.waitActive();
        conf.set("fs.defaultFS", files.getURI().toString());
        conf.setInt("yarn.nodemanager.resource.memory-mb", 6144);
        conf.setInt("yarn.nodemanager.resource.cpu-vcores", 8);
        conf.setInt("yarn.scheduler.minimum-allocation-mb", 128);
        conf.setBoolean("yarn.nodemanager.vmem-check-enabled", false);
        conf.setBoolean("yarn.nodemanager.pmem-check-enabled", false);
        // A disk of the machine that is nearly full does not stop the tests.
        conf.setFloat(
                "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", 100);
        conf.set("yarn.scheduler.capacity.root.queues", "default");
        conf.set("yarn.scheduler.capacity.root.default.capacity", "100");
        conf.set("yarn.scheduler.capacity.maximum-am-resource-percent", "1.0");
        MiniYARNCluster yarn = new MiniYARNCluster("yarn", 1, 1, 1);
        yarn.init(conf);
        yarn.start();
        Configuration told = new Configuration(yarn.getConfig());
        // That of the test jar, which clients do not have.
        told.unset("net.topology.node.switch.mapping.impl");
        // Each file goes before Hadoop's defaults for its own part only. Clients wait for the last.
        for (String name : new String[] {"hdfs-site.xml", "yarn-site.xml", "core-site.xml"}) {
            File unfinished = new File(directory, "unfinished");
            try (OutputStream out = new FileOutputStream(unfinished)) {
                told.writeXml(out);
            }
            unfinished.renameTo(new File(directory, name));
        }
        while (System.in.read() >= 0) {}
        yarn.stop();
        files.shutdown();
    }
}
